"""POSIX shared memory that one process makes and another of the same user maps.

The name lives only until the other side has mapped it, so a killed process leaves nothing; one that
is killed in between leaves a name that the next one to make a segment removes.
"""

import ctypes
import fcntl
import logging
import mmap
import os
import re
import secrets
import stat
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Final, Self

from serving.transport import cuda_driver as driver

FOLDER: Final = Path("/dev/shm")
PREFIX: Final = "domino-serve-"
_NAME: Final = re.compile(re.escape(PREFIX) + "[0-9a-f]{32}")
_FLAGS: Final = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC

log = logging.getLogger(__name__)


class Segment:
    """Mapped memory; tensors and arrays may be made over `bytes`, which is writable."""

    def __init__(self, file: int, size: int, name: str) -> None:
        """Of an open file of that size, which stays the caller's."""
        self.name, self._lock, self._pinned_by = name, -1, -1
        self.bytes = mmap.mmap(file, size)

    @classmethod
    def make(cls, size: int) -> Self:
        """A new one, all of it there, for this user alone; raises OSError."""
        _remove_left()
        name, file = _new_file()
        try:
            os.posix_fallocate(file, 0, size)  # a full /dev/shm would kill whoever writes later
            made = cls(file, size, name)
        except OSError:
            (FOLDER / name).unlink(missing_ok=True)
            os.close(file)
            raise
        made._lock = file
        return made

    @classmethod
    def open(cls, name: str, size: int) -> Self:
        """Another process's; raises ValueError for what is none of ours, or OSError."""
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r:.60} is no name of a segment")
        file = os.open(FOLDER / name, _FLAGS)
        try:
            found = os.fstat(file)
            if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
                raise ValueError("it belongs to another user")
            if found.st_size != size:
                raise ValueError(f"it has {found.st_size} bytes, not {size}")
            return cls(file, size, name)
        finally:
            os.close(file)

    def pin(self, device: int) -> None:
        """For copies to and from that GPU, which take longer where it cannot be."""
        try:
            with driver.current(device):
                driver.pin(self.address(), len(self.bytes))
            self._pinned_by = device
        except RuntimeError as error:
            log.warning("shared memory is not pinned, copies take longer: %s", error)

    @property
    def is_pinned(self) -> bool:
        return self._pinned_by >= 0

    def pinning(self) -> AbstractContextManager[None]:
        """The context of the device it is pinned for."""
        return driver.current(self._pinned_by)

    def unlink(self) -> None:
        """For its maker: nobody else can map it from here on."""
        if self._lock >= 0:
            (FOLDER / self.name).unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = -1

    def close(self) -> None:
        """Unmaps it; later, where something still looks at it. No copy may be on its way."""
        self.unlink()
        if self._pinned_by >= 0:
            with self.pinning():
                driver.unpin(self.address())
            self._pinned_by = -1
        with suppress(BufferError):
            self.bytes.close()

    def address(self) -> int:
        """In this process, and for its GPUs where it is pinned."""
        return ctypes.addressof(ctypes.c_char.from_buffer(self.bytes))


def _new_file() -> tuple[str, int]:
    """The name of an empty one, and the open file, whose lock says that its maker lives."""
    while True:
        name = PREFIX + secrets.token_hex(16)
        file = os.open(FOLDER / name, _FLAGS | os.O_CREAT | os.O_EXCL, 0o600)
        # Until it is locked, another process may take it for one that was left, and remove it.
        with suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if (FOLDER / name).exists():
                return name, file
        os.close(file)


def _remove_left() -> None:
    """Segments whose makers died before they were mapped: nobody holds their lock."""
    for path in FOLDER.glob(f"{PREFIX}*"):
        with suppress(OSError):
            file = os.open(path, _FLAGS)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
            finally:
                os.close(file)
