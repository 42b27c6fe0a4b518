"""Tensors on the wire: every dtype survives the round trip, anything else is refused by field."""

import struct

import pytest
import torch
from torch import Tensor

from domino_serve.v1 import tensor_pb2 as pb
from serving.errors import BadRequest
from serving.tensors import DTYPES, from_message, to_message

SPECIAL = [0.0, -0.0, 1.0, -2.5, 65504.0, 6e-8, float("inf"), float("-inf"), float("nan"), 1e-3]


def same_bits(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and a.view(torch.uint8).equal(b.view(torch.uint8))


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype_survives_the_round_trip(name: str) -> None:
    """Rows changed on the way would lower acceptance by a little and never be found."""
    dtype = DTYPES[name]
    matrix = torch.tensor(SPECIAL).view(2, 5).to(dtype)
    back = from_message(pb.Tensor.FromString(to_message(matrix).SerializeToString()), "r", 5, dtype)
    assert same_bits(back, matrix)


def test_the_bytes_are_little_endian_and_row_major() -> None:
    """Another implementation of the contract must read the same numbers."""
    message = to_message(torch.tensor([[1.0, 2.0], [3.0, -4.0]]).T)
    assert (message.dtype, list(message.shape)) == (pb.DATA_TYPE_FLOAT32, [2, 2])
    assert message.inline == struct.pack("<4f", 1.0, 3.0, 2.0, -4.0)
    half = to_message(torch.tensor([[1.0, -2.0]], dtype=torch.bfloat16))
    assert (half.dtype, half.inline) == (pb.DATA_TYPE_BFLOAT16, bytes.fromhex("803f00c0"))


@pytest.mark.parametrize("dtype", DTYPES.values())
def test_no_rows_are_a_matrix_too(dtype: torch.dtype) -> None:
    """A message of appends only, with nothing new, must not fail."""
    back = from_message(to_message(torch.empty(0, 5, dtype=dtype)), "rows", 5, dtype)
    assert (back.shape, back.dtype) == ((0, 5), dtype)


def test_what_arrives_may_be_written_to() -> None:
    """torch warns about (and may write through) views of read-only bytes."""
    back = from_message(to_message(torch.ones(2, 2)), "rows", 2, torch.float32)
    back += 1
    assert back.tolist() == [[2.0, 2.0], [2.0, 2.0]]


def wrong(**changes: object) -> pb.Tensor:
    """A [2, 3] float32 tensor with changes."""
    fields = {"dtype": pb.DATA_TYPE_FLOAT32, "shape": [2, 3], "inline": bytes(24)}
    return pb.Tensor(**(fields | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (wrong(dtype=pb.DATA_TYPE_BFLOAT16), "rows.dtype"),
        (wrong(dtype=pb.DATA_TYPE_UNSPECIFIED), "rows.dtype"),
        (wrong(shape=[6]), "rows.shape"),
        (wrong(shape=[1, 2, 3]), "rows.shape"),
        (wrong(shape=[3, 2]), "rows.shape"),
        (wrong(shape=[-2, 3]), "rows.shape"),
        (wrong(shape=[]), "rows.shape"),
        (wrong(inline=bytes(23)), "rows.inline"),
        (wrong(inline=bytes(25)), "rows.inline"),
        (wrong(inline=b""), "rows.inline"),
        (wrong(shape=[2**40, 3]), "rows.inline"),
        (pb.Tensor(dtype=pb.DATA_TYPE_FLOAT32, shape=[2, 3]), "rows.inline"),
    ],
)
def test_a_wrong_tensor_is_refused_by_field(message: pb.Tensor, field: str) -> None:
    """Bytes read with the wrong shape or dtype are numbers, but not the sender's."""
    with pytest.raises(BadRequest) as caught:
        from_message(message, "rows", 3, torch.float32)
    assert caught.value.field == field
