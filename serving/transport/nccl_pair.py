"""A pair of GPUs that NCCL connects, on two hosts or one: InfiniBand, RoCE, NVLink or TCP.

By NCCL's own calls. torch's process groups have a thread each that ends the process when the other
side dies, by settings that the ranks of a service need otherwise. Here calls do not block, so the
host looks until a limit, and aborts: that ends what the GPU has begun, too.
"""

import ctypes
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Final

import torch
from torch import Tensor

from domino_serve.v1 import draft_pb2
from serving.transport.pair import PairLost

ID_BYTES: Final = 128
_SUCCESS, _IN_PROGRESS = 0, 7  # of ncclResult_t
_UINT8: Final = 1  # of ncclDataType_t
_UNDEFINED: Final = -(1 << 31)
# Rows take no longer by one channel than by all, whose buffers took 260 MiB of verify's GPU and 520
# of the draft's for each stream (one: 13 and 22). NCCL_MAX_CTAS of the environment wins.
_CHANNELS: Final = 1
_LAUNCH_S: Final = 0.1  # what was begun before was answered; it has been launched long ago
_SPIN_S: Final = 5e-4  # so long it looks without sleeping: rows take less, waking up takes 0.1 ms
_RAREST_S: Final = 2e-3  # between looks, later


class UniqueId(ctypes.Structure):
    """Passed by value."""

    _fields_ = (("internal", ctypes.c_ubyte * ID_BYTES),)


class Config(ctypes.Structure):
    """ncclConfig_t as of 2.17, which later versions take."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("magic", ctypes.c_uint),
        ("version", ctypes.c_uint),
        ("blocking", ctypes.c_int),
        ("cga_cluster_size", ctypes.c_int),
        ("min_ctas", ctypes.c_int),
        ("max_ctas", ctypes.c_int),
        ("net_name", ctypes.c_void_p),
    )


class NcclPair:
    """As serving.transport.pair.Pair."""

    def __init__(self, rank: int, unique_id: UniqueId, device: torch.device) -> None:
        self._rank, self._id, self._device = rank, unique_id, device
        # Before the target's or draft's own kernels, which the other side waits for.
        self._stream = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
        self._communicator = ctypes.c_void_p()
        self._busy, self._is_closed = threading.Lock(), False

    @classmethod
    def offered(cls, device: torch.device) -> "NcclPair":
        """Rank 0; raises OSError where there is no NCCL, RuntimeError."""
        unique_id = UniqueId()
        with torch.cuda.device(device):
            _call("ncclGetUniqueId", ctypes.byref(unique_id))
        return cls(0, unique_id, device)

    @classmethod
    def of(cls, group: draft_pb2.NcclGroup, device: torch.device) -> "NcclPair":
        """Rank 1; raises ValueError."""
        if len(group.unique_id) != ID_BYTES:
            raise ValueError("it is no group of GPUs, and this draft service has one")
        return cls(1, UniqueId.from_buffer_copy(group.unique_id), device)

    def group(self) -> draft_pb2.NcclGroup:
        return draft_pb2.NcclGroup(unique_id=bytes(self._id.internal))

    def join(self, until: float) -> None:
        config = Config(
            size=ctypes.sizeof(Config), magic=0xCAFEBEEF, version=21700, blocking=0,
            cga_cluster_size=_UNDEFINED, min_ctas=_UNDEFINED, max_ctas=_CHANNELS,
        )  # fmt: skip
        made, rank = ctypes.byref(self._communicator), ctypes.c_int(self._rank)
        with self._used():
            _call(
                "ncclCommInitRankConfig", made, ctypes.c_int(2), self._id, rank,
                ctypes.byref(config),
            )  # fmt: skip
        self._look(lambda: True, until)

    def begin(self, buffer: Tensor) -> None:
        self._begin("ncclSend", buffer)

    def finish(self, buffer: Tensor, until: float) -> None:
        self._finish(until, spins=False)

    def receive(self, buffer: Tensor, until: float) -> None:
        self._begin("ncclRecv", buffer)
        self._finish(until, spins=True)

    def close(self) -> None:
        self._is_closed = True
        with self._busy:
            communicator, self._communicator = self._communicator, ctypes.c_void_p()
            if communicator:
                with torch.cuda.device(self._device):
                    _library().ncclCommAbort(communicator)

    def _begin(self, name: str, buffer: Tensor) -> None:
        self._look(lambda: True, time.monotonic() + _LAUNCH_S)  # of the one before
        buffer.record_stream(self._stream)  # its memory is nobody else's while it is under way
        place, size = ctypes.c_void_p(buffer.data_ptr()), ctypes.c_size_t(buffer.nbytes)
        kind, peer = ctypes.c_int(_UINT8), ctypes.c_int(1 - self._rank)
        stream = ctypes.c_void_p(self._stream.cuda_stream)
        with self._used():
            self._stream.wait_stream(torch.cuda.current_stream(self._device))
            _call(name, place, size, kind, peer, self._communicator, stream)

    def _finish(self, until: float, *, spins: bool) -> None:
        self._look(lambda: True, until, spins=spins)  # launched, by a thread of NCCL
        with self._used():
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record(self._stream)
        self._look(done.query, until, spins=spins)

    def _look(self, is_done: Callable[[], bool], until: float, *, spins: bool = True) -> None:
        """Returns once nothing is in progress and it is done; raises PairLost.

        spins: looks at once; else the caller is in no hurry, and leaves Python's lock to others.
        """
        state, began = ctypes.c_int(), time.monotonic()
        while True:
            if not spins:
                time.sleep(_RAREST_S)
            with self._used():
                _call("ncclCommGetAsyncError", self._communicator, ctypes.byref(state))
                _check("NCCL", state.value, self._communicator)
                if state.value == _SUCCESS and is_done():
                    return
            if (now := time.monotonic()) > until:
                raise PairLost("timed out")
            waited = now - began
            if spins:
                time.sleep(min(waited / 8, _RAREST_S) if waited > _SPIN_S else 0.0)

    @contextmanager
    def _used(self) -> Iterator[None]:
        with self._busy, torch.cuda.device(self._device):
            if self._is_closed:
                raise PairLost("was closed")
            yield


def _call(name: str, *arguments: Any) -> None:
    _check(name, getattr(_library(), name)(*arguments), ctypes.c_void_p())


def _check(name: str, code: int, communicator: ctypes.c_void_p) -> None:
    """Raises PairLost with NCCL's own words for what is an error."""
    if code not in (_SUCCESS, _IN_PROGRESS):
        library = _library()
        said = library.ncclGetLastError(communicator) or library.ncclGetErrorString(code)
        raise PairLost(f"{name}: {said.decode(errors='replace')} ({code})")


@cache
def _library() -> ctypes.CDLL:
    """torch's, which is loaded already; raises OSError where torch has none of its own."""
    library = ctypes.CDLL("libnccl.so.2")
    library.ncclGetLastError.restype = library.ncclGetErrorString.restype = ctypes.c_char_p
    return library
