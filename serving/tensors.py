"""Tensors on the wire: torch tensors to contract messages and back; imported by engines only."""

from typing import Final

import torch
from torch import Tensor

from domino_serve.v1 import tensor_pb2
from serving.errors import BadRequest

DTYPES: Final[dict[str, torch.dtype]] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
_WIRE: Final = {
    torch.float32: tensor_pb2.DATA_TYPE_FLOAT32,
    torch.bfloat16: tensor_pb2.DATA_TYPE_BFLOAT16,
    torch.float16: tensor_pb2.DATA_TYPE_FLOAT16,
}


def to_message(tensor: Tensor) -> tensor_pb2.Tensor:
    """A float tensor with its bytes inline."""
    message = tensor_pb2.Tensor()
    put_inline(tensor, message)
    return message


def put_inline(tensor: Tensor, message: tensor_pb2.Tensor) -> None:
    """The same in an empty message: in its place, as another copy of a step's rows takes long."""
    data = tensor.detach().cpu().contiguous()
    message.dtype = _WIRE[data.dtype]
    message.shape.extend(data.shape)
    message.inline = data.view(torch.uint8).numpy().tobytes()


def data_type(tensor: Tensor) -> tensor_pb2.DataType.ValueType:
    """The contract's name of its element type."""
    return _WIRE[tensor.dtype]


def check_matrix(
    message: tensor_pb2.Tensor, field: str, columns: int, dtype: torch.dtype
) -> list[int]:
    """Its shape [n, columns]; raises BadRequest naming `field` for another one or another dtype."""
    if message.dtype != _WIRE[dtype]:
        raise BadRequest(f"{field}.dtype", f"is {message.dtype}, expected {_WIRE[dtype]} ({dtype})")
    shape = list(message.shape)
    if len(shape) != 2 or shape[1] != columns or shape[0] < 0:
        raise BadRequest(f"{field}.shape", f"is {shape}, expected [n, {columns}]")
    return shape


def from_message(
    message: tensor_pb2.Tensor, field: str, columns: int, dtype: torch.dtype
) -> Tensor:
    """The matrix [n, columns] in a message; raises BadRequest naming `field` otherwise."""
    shape = check_matrix(message, field, columns, dtype)
    expected = shape[0] * columns * dtype.itemsize
    data = message.inline  # a copy each time
    if len(data) != expected:
        raise BadRequest(f"{field}.inline", f"has {len(data)} bytes, expected {expected}")
    if not data:
        return torch.empty(shape, dtype=dtype)
    # A bytearray, because torch warns about (and could write to) read-only buffers.
    return torch.frombuffer(bytearray(data), dtype=dtype).view(shape)
