"""The few calls of the CUDA driver that share memory and events with another process.

By ctypes, since torch's own sharing counts references in files that a killed process leaves behind.
Calls need a context: `current`.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Final

from serving.metrics import IPC_HANDLES

HANDLE_BYTES: Final = 64
_SHARED_EVENT: Final = 0x2 | 0x4  # without times, for other processes
_PEER_ACCESS: Final = 0x1  # enabled at need, where the memory is another GPU's
_PORTABLE: Final = 0x1  # pinned for every context

Pointer = ctypes.c_void_p

_held: Final = {"memory": 0, "event": 0, "own_memory": 0}  # the first two are to be given back
IPC_HANDLES.source = lambda: {(kind,): count for kind, count in _held.items()}


class Handle(ctypes.Structure):
    """Of memory or an event; passed by value."""

    _fields_ = (("reserved", ctypes.c_ubyte * HANDLE_BYTES),)

    def __bytes__(self) -> bytes:
        return bytes(self.reserved)

    @classmethod
    def of(cls, data: bytes) -> "Handle":
        """Raises ValueError for what is none."""
        if len(data) != HANDLE_BYTES:
            raise ValueError(f"a CUDA IPC handle has {HANDLE_BYTES} bytes, not {len(data)}")
        return cls.from_buffer_copy(data)


@contextmanager
def current(device: int) -> Iterator[None]:
    """Body with the context that torch uses on the device; a thread may have none yet."""
    _call("cuCtxPushCurrent_v2", _primary(device))
    try:
        yield
    finally:
        _call("cuCtxPopCurrent_v2", ctypes.byref(Pointer()))


@cache
def _primary(device: int) -> Pointer:
    context = Pointer()
    _call("cuDevicePrimaryCtxRetain", ctypes.byref(context), ctypes.c_int(device))
    return context


def allocate(size: int) -> int:
    """Address of new device memory, an allocation of its own; never freed."""
    pointer = ctypes.c_uint64()
    _call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size))
    _held["own_memory"] += 1
    return pointer.value


def new_event() -> Pointer:
    """An event that other processes can wait for."""
    event = Pointer()
    _call("cuEventCreate", ctypes.byref(event), ctypes.c_uint(_SHARED_EVENT))
    return event


def memory_handle(address: int) -> bytes:
    handle = Handle()
    _call("cuIpcGetMemHandle", ctypes.byref(handle), ctypes.c_uint64(address))
    return bytes(handle)


def event_handle(event: Pointer) -> bytes:
    handle = Handle()
    _call("cuIpcGetEventHandle", ctypes.byref(handle), event)
    return bytes(handle)


def open_memory(handle: bytes) -> int:
    """Address of another process' memory in this one."""
    pointer = ctypes.c_uint64()
    _call(
        "cuIpcOpenMemHandle_v2",
        ctypes.byref(pointer),
        Handle.of(handle),
        ctypes.c_uint(_PEER_ACCESS),
    )
    _held["memory"] += 1
    return pointer.value


def open_event(handle: bytes) -> Pointer:
    """Another process' event."""
    event = Pointer()
    _call("cuIpcOpenEventHandle", ctypes.byref(event), Handle.of(handle))
    _held["event"] += 1
    return event


def close_memory(address: int) -> None:
    _call("cuIpcCloseMemHandle", ctypes.c_uint64(address))
    _held["memory"] -= 1


def close_event(event: Pointer) -> None:
    """Of one that was opened."""
    _call("cuEventDestroy_v2", event)
    _held["event"] -= 1


def pin(address: int, size: int) -> None:
    """Host memory that copies from and to GPUs need no buffer between for."""
    _call(
        "cuMemHostRegister_v2",
        ctypes.c_uint64(address),
        ctypes.c_size_t(size),
        ctypes.c_uint(_PORTABLE),
    )


def unpin(address: int) -> None:
    """No copy may be on its way."""
    _call("cuMemHostUnregister", ctypes.c_uint64(address))


def set_flag(stream: int, address: int, value: int) -> None:
    """Four bytes of pinned memory, once all before it in the stream is done and seen."""
    _call(
        "cuStreamWriteValue32_v2",
        Pointer(stream),
        ctypes.c_uint64(address),
        ctypes.c_uint32(value),
        ctypes.c_uint(0),
    )


def wait_flag(stream: int, address: int, value: int) -> None:
    """What is launched in the stream from here on runs once they are the value, or past it by less
    than 2^31; whoever writes them."""
    _call(
        "cuStreamWaitValue32_v2",
        Pointer(stream),
        ctypes.c_uint64(address),
        ctypes.c_uint32(value),
        ctypes.c_uint(0),
    )


def size_of(address: int) -> int:
    """Bytes of the allocation that begins at this address."""
    base, size = ctypes.c_uint64(), ctypes.c_size_t()
    _call(
        "cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), ctypes.c_uint64(address)
    )
    return size.value if base.value == address else 0


def copy(to: int, source: int, size: int, stream: int) -> None:
    """Between any two places of device memory, in the stream's order."""
    _call(
        "cuMemcpyAsync",
        ctypes.c_uint64(to),
        ctypes.c_uint64(source),
        ctypes.c_size_t(size),
        Pointer(stream),
    )


def record(event: Pointer, stream: int) -> None:
    _call("cuEventRecord", event, Pointer(stream))


def wait(stream: int, event: Pointer) -> None:
    """What is launched in the stream from here on runs after the event's last record."""
    _call("cuStreamWaitEvent", Pointer(stream), event, ctypes.c_uint(0))


def _call(name: str, *arguments: Any) -> None:
    """Raises RuntimeError with the driver's name of the fault."""
    code = getattr(_library(), name)(*arguments)
    if code:
        text = ctypes.c_char_p()
        _library().cuGetErrorName(code, ctypes.byref(text))
        raise RuntimeError(f"{name}: {(text.value or b'unknown error').decode()} ({code})")


@cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL("libcuda.so.1")
    library.cuInit(ctypes.c_uint(0))
    return library
