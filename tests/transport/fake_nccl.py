"""NCCL and as much of torch.cuda as a pair needs, in this process' own memory.

As NCCL does, it starts only what both ranks have asked for, takes no more than was asked for, and
says nothing when a rank is gone: only a limit, or an abort, ends what waits for that one.
"""

import ctypes
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Final

import pytest
import torch

from serving.transport import nccl, nccl_pair
from serving.transport.nccl_pair import ID_BYTES, Config, NcclPair, UniqueId

DEVICE: Final = torch.device("cpu", 0)
SUCCESS, SYSTEM_ERROR, INVALID, IN_PROGRESS = 0, 2, 4, 7
UNDEFINED: Final = -(1 << 31)


@dataclass
class Move:
    """A buffer that one rank sends or wants."""

    address: int
    size: int
    done: bool = False


@dataclass
class Group:
    """Two ranks, once they are there, and what each has asked for and has not got."""

    ranks: set[int] = field(default_factory=set)
    sent: list[Move] = field(default_factory=list)
    wanted: list[Move] = field(default_factory=list)

    def go_on(self) -> None:
        while self.sent and self.wanted:
            sent, wanted = self.sent[0], self.wanted[0]
            ctypes.memmove(wanted.address, sent.address, min(sent.size, wanted.size))
            wanted.done, sent.done = wanted.size <= sent.size, sent.size <= wanted.size
            if not (wanted.done and sent.done):
                return  # who wants more waits, and who has more to give
            del self.sent[0], self.wanted[0]


class FakeNccl:
    """In libnccl's place."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._groups: dict[bytes, Group] = {}
        self._ranks: dict[int, tuple[Group, int]] = {}  # by communicator
        self._launching: set[int] = set()
        self.last: dict[int, Move] = {}  # by stream
        self.error = SUCCESS  # of every communicator

    @property
    def held(self) -> int:
        """Communicators that nobody has aborted."""
        return len(self._ranks)

    def ncclGetUniqueId(self, unique_id: Any) -> int:
        unique_id._obj.internal[:] = list(secrets.token_bytes(ID_BYTES))
        return SUCCESS

    def ncclCommInitRankConfig(
        self, made: Any, ranks: ctypes.c_int, unique_id: UniqueId, rank: ctypes.c_int, config: Any
    ) -> int:
        given: Config = config._obj
        fields = (given.cga_cluster_size, given.min_ctas, given.max_ctas)
        if (given.size, given.magic, given.version) != (40, 0xCAFEBEEF, 21700) or given.blocking:
            return INVALID
        if ranks.value != 2 or fields != (UNDEFINED, UNDEFINED, 1) or given.net_name is not None:
            return INVALID
        with self._lock:
            group = self._groups.setdefault(bytes(unique_id.internal), Group())
            group.ranks.add(rank.value)
            made._obj.value = number = max(self._ranks, default=0) + 1
            self._ranks[number] = group, rank.value
        return IN_PROGRESS

    def ncclCommGetAsyncError(self, communicator: ctypes.c_void_p, state: Any) -> int:
        with self._lock:
            number = communicator.value or 0
            group, _ = self._ranks[number]
            busy = number in self._launching or len(group.ranks) < 2
            self._launching.discard(number)
            state._obj.value = self.error or (IN_PROGRESS if busy else SUCCESS)
        return SUCCESS

    def ncclSend(self, *arguments: Any) -> int:
        return self._asked("sent", *arguments)

    def ncclRecv(self, *arguments: Any) -> int:
        return self._asked("wanted", *arguments)

    def ncclCommAbort(self, communicator: ctypes.c_void_p) -> int:
        with self._lock:
            del self._ranks[communicator.value or 0]
        return SUCCESS

    def ncclGetLastError(self, communicator: ctypes.c_void_p) -> bytes:
        return b""

    def ncclGetErrorString(self, code: int) -> bytes:
        return {SYSTEM_ERROR: b"unhandled system error"}[code]

    def _asked(
        self,
        which: str,
        address: ctypes.c_void_p,
        size: ctypes.c_size_t,
        kind: ctypes.c_int,
        peer: ctypes.c_int,
        communicator: ctypes.c_void_p,
        stream: ctypes.c_void_p,
    ) -> int:
        with self._lock:
            number = communicator.value or 0
            group, rank = self._ranks[number]
            if (kind.value, peer.value) != (1, 1 - rank):
                return INVALID
            move = Move(address.value or 0, size.value)
            getattr(group, which).append(move)
            group.go_on()
            self.last[stream.value or 0] = move
            self._launching.add(number)
        return IN_PROGRESS


class Stream:
    """Does one thing after another."""

    count = 0

    def __init__(self, device: object, priority: int = 0) -> None:
        Stream.count += 1
        self.cuda_stream = Stream.count

    def wait_stream(self, stream: object) -> None: ...


@contextmanager
def in_place() -> Iterator[FakeNccl]:
    """Body with pairs of NCCL where a service on a CPU has others."""
    library = FakeNccl()

    class Event:
        def record(self, stream: Any) -> None:
            self._move = library.last.get(stream.cuda_stream)

        def query(self) -> bool:
            return self._move is None or self._move.done

    class Pairs:
        offered = staticmethod(lambda: NcclPair.offered(DEVICE))
        of = staticmethod(lambda group: NcclPair.of(group, DEVICE))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nccl_pair, "_library", lambda: library)
        patch.setattr(nccl, "TcpPair", Pairs)
        patch.setattr(torch.cuda, "Stream", Stream)
        patch.setattr(torch.cuda, "Event", Event)
        patch.setattr(torch.cuda, "device", lambda device: nullcontext())
        patch.setattr(torch.cuda, "current_stream", Stream)
        patch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: None)
        yield library
    assert library.held == 0, "communicators that were not aborted"
