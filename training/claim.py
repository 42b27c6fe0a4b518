"""A run's folder belongs to one process: a second one is refused before it touches a file there."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from training.errors import TrainingError


@contextmanager
def claimed(folder: Path, file: str) -> Iterator[None]:
    """Locks `file` in `folder`, both made where they are missing; the lock goes with the process,
    however that ends. Raises TrainingError while another process has it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / file).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise TrainingError(
                f"another process writes to {folder}; end it, or choose another folder"
            ) from error
        yield
