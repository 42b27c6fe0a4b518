"""The user cache: where models are kept, one writer at a time, whole folders or none."""

import fcntl
import hashlib
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from domino_cli.progress import Say

MANIFEST = "manifest.json"


def is_complete(folder: Path, source_sha256: str) -> bool:
    """Whether `folder` was written from that source and every file still has its size."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        sizes = {name: (folder / name).stat().st_size for name in manifest["sizes"]}
    except (OSError, ValueError, KeyError):
        return False
    return bool(manifest["source_sha256"] == source_sha256 and sizes == manifest["sizes"])


def write_manifest(folder: Path, **facts: str | int) -> None:
    """Records where the folder came from and the size of each of its files, in bytes."""
    sizes = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
    (folder / MANIFEST).write_text(json.dumps({**facts, "sizes": sizes}, indent=2) + "\n")


@contextmanager
def locked(path: Path, say: Say) -> Iterator[None]:
    """Holds the lock file `path`; says so when another process has it and waits."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another process that holds {path}")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """Yields an empty folder that takes the place of `folder` when the block succeeds.

    Call it under a lock: what an interrupted earlier attempt left is removed.
    """
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    yield partial
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)


def copy_hashed(source: IO[bytes], target: IO[bytes]) -> str:
    """Copies all bytes; returns their sha256."""
    digest = hashlib.sha256()
    while chunk := source.read(1 << 20):
        digest.update(chunk)
        target.write(chunk)
    return digest.hexdigest()


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
