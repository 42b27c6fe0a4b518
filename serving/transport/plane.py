"""How projected rows travel from verify to draft: one interface, of memory that both sides map.

A verify service offers memory on its stream, the draft service answers with the nonce it finds in
it, and from then on messages point to slots of it; inline is what is left where there is none.
Kinds of memory: serving.transport.shm, serving.transport.cuda_ipc; serving.transport.nccl sends
what was put into its slots.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeAlias, get_args

from domino_serve.v1 import draft_pb2, tensor_pb2
from serving.option_type import OptionError

if TYPE_CHECKING:
    from torch import Tensor, dtype

    from serving.transport.early import Early

Plane: TypeAlias = "tensor_pb2.DataPlane.ValueType"
PlaneName = Literal["auto", "inline", "shm", "cuda-ipc", "nccl"]

INLINE: Final = tensor_pb2.DATA_PLANE_INLINE
SHM: Final = tensor_pb2.DATA_PLANE_SHM
CUDA_IPC: Final = tensor_pb2.DATA_PLANE_CUDA_IPC
NCCL: Final = tensor_pb2.DATA_PLANE_NCCL
IN_PROCESS: Final = tensor_pb2.DATA_PLANE_IN_PROCESS
NAMES: Final[Mapping[Plane, str]] = {
    INLINE: "inline",
    SHM: "shm",
    CUDA_IPC: "cuda-ipc",
    NCCL: "nccl",
    IN_PROCESS: "in-process",
}
# Of the contract's messages, for planes that are memory.
FIELDS: Final[Mapping[Plane, str]] = {SHM: "shm", CUDA_IPC: "cuda_ipc", NCCL: "nccl"}
PLANES: Final[Mapping[str | None, Plane]] = {
    "inline": INLINE,
    **{field: plane for plane, field in FIELDS.items()},
}

HEADER_BYTES: Final = 4096  # before the first slot, in the contract
NONCE_BYTES: Final = 32
SLOTS: Final = 2  # one is being read while the next is filled, after an answer nobody waited for
# A message's rows, which are no more: 2,048 of a prompt for hidden 4096 in bfloat16. Inline they
# cost 50 ms of a step.
SLOT_BYTES: Final = 16 << 20
MOST_SLOTS: Final = 16
MOST_SLOT_BYTES: Final = 16 << 20  # in the contract


class OwnMemory(Protocol):
    """Made by the verify service, which fills it."""

    plane: Plane
    nonce: bytes
    join_s: float  # what the draft service may take to map it, beside an answer's usual time

    @property
    def early(self) -> "Early | None":
        """For passes that are told before they have ended; None where memory cannot do that."""
        ...

    def offer(self) -> draft_pb2.MemoryOffer:
        """What the draft service needs to map it."""
        ...

    def answered(self) -> None:
        """The offer was answered, one way or the other: nobody else is to map it."""
        ...

    def fill(self, slot: int, rows: "Tensor", sequence_number: int) -> None:
        """Puts rows [n, hidden] into a slot; whoever reads it later sees them."""
        ...

    def close(self) -> None: ...


class MappedMemory(Protocol):
    """The same on the draft's side, mapped."""

    plane: Plane
    nonce: bytes

    @property
    def early(self) -> "Early | None": ...

    def read(
        self, slot: int, sequence_number: int, shape: Sequence[int], dtype: "dtype"
    ) -> "Tensor":
        """Rows of that shape, which fit a slot; valid until `release`.

        Raises BadRequest for a slot that was filled for another message.
        """
        ...

    def release(self) -> None:
        """Returns when what was read is no longer needed in its slot."""
        ...

    def close(self) -> None: ...


MakeMemory = Callable[[], OwnMemory]  # raises OSError, or RuntimeError of CUDA
NONE: Final[Mapping[Plane, MakeMemory]] = {}
MapMemory = Callable[[draft_pb2.MemoryOffer], MappedMemory]  # and ValueError, of a bad offer


def check_name(option: str, *, encrypted: bool = False) -> None:
    """Raises OptionError for a plane that --data-plane cannot choose, with the reason.

    encrypted: whether the service's messages are.
    """
    if option == "nccl" and encrypted:
        raise OptionError("data_plane", option, "sends rows unencrypted; with TLS take inline")
    if option in get_args(PlaneName):
        return
    reasons = {
        "in-process": "is for both engines in one process: `python -m domino_cli.one_process`, or "
        "`domino-serve up --data-plane in-process`",
    }
    known = ", ".join(get_args(PlaneName))
    raise OptionError("data_plane", option, reasons.get(option, f"must be one of {known}"))
