"""Unix-domain sockets: a server's `unix:/path` in, a socket that only its own user can use out.

serving.process binds it; gRPC removes it when the server stops.
"""

import atexit
import fcntl
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from serving.errors import StartError
from serving.option_type import OptionError

SCHEME: Final = "unix:"
_MAX_BYTES: Final = 107  # of a path, the kernel's limit
_SOCKET_MODE: Final = 0o600
_FOLDER_MODE: Final = 0o700
_OTHERS_WRITE: Final = 0o022


def is_unix(address: str) -> bool:
    """Whether it is a socket of this machine, and no host:port."""
    return address.startswith(SCHEME)


def path_of(address: str) -> Path:
    """The socket's path; raises OptionError for what cannot be one."""
    path = Path(address.removeprefix(SCHEME))
    if not is_unix(address) or not path.is_absolute() or "," in address:
        raise OptionError("listen", address, "must be unix:/absolute/path, without commas")
    if len(os.fsencode(path)) > _MAX_BYTES:
        raise OptionError("listen", address, f"must have a path of {_MAX_BYTES} bytes at most")
    return path


@contextmanager
def claimed(address: str) -> Iterator[None]:
    """Holds the address for the caller to bind; raises StartError where that is not safe.

    A missing folder is made, for this user alone. The socket of a process that has died is
    replaced; gRPC would replace a living one's too.
    """
    path = path_of(address)
    folder = _open_folder(path.parent)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)  # two starts would both find the same stale socket
        _remove_stale(path)
        yield
        path.chmod(_SOCKET_MODE)
        atexit.register(_remove, path, path.stat().st_ino)
    finally:
        os.close(folder)


def _open_folder(folder: Path) -> int:
    try:
        folder.mkdir(_FOLDER_MODE, exist_ok=True)
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise StartError(f"{folder}: no folder for a socket: {error.strerror}") from error
    found = os.fstat(opened)
    if found.st_uid not in (os.geteuid(), 0) or found.st_mode & _OTHERS_WRITE:
        os.close(opened)
        raise StartError(
            f"{folder} (user {found.st_uid}, mode {stat.S_IMODE(found.st_mode):o}): others could "
            f"put a socket of their own there; take a folder of this user with mode 700"
        )
    return opened


def _remove_stale(path: Path) -> None:
    with suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise StartError(f"{path} exists and is no socket; choose another path")
        if _answers(path):
            raise StartError(f"{path} is in use by another process; choose another path")
        path.unlink()


def _answers(path: Path) -> bool:
    """Whether somebody listens there; one that cannot be reached now is somebody's too."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            return False
        except OSError:
            return True
    return True


def _remove(path: Path, inode: int) -> None:
    """For an end that stops no server; a later process may have made its own there."""
    with suppress(FileNotFoundError):
        if path.lstat().st_ino == inode:
            path.unlink()
