"""A CUDA driver made of this process' own memory, in libcuda's place."""

import ctypes
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from serving.transport import cuda_driver, shm

SOURCE = Path(__file__).with_name("fake_cuda.c")
COMPILER = shutil.which("cc")
DEVICE = torch.device("cpu", 0)  # in the GPU's place, where torch puts tensors


class NoEvent:
    """Copies of the fake driver are done when they return."""

    def record(self, stream: object) -> None: ...
    def synchronize(self) -> None: ...


def compiled(folder: Path) -> ctypes.CDLL:
    """The driver as a library in that folder."""
    made = folder / "libcuda.so"
    assert COMPILER is not None
    subprocess.run([COMPILER, "-shared", "-fPIC", "-o", str(made), str(SOURCE)], check=True)
    return ctypes.CDLL(str(made))


@contextmanager
def in_place(library: ctypes.CDLL) -> Iterator[None]:
    """Body with the library as the driver, and shared memory pinned; every context that was entered
    is left again."""
    library.fake_reset()
    cuda_driver._primary.cache_clear()  # another library's
    stream = SimpleNamespace(cuda_stream=0, synchronize=lambda: None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda_driver, "_library", lambda: library)
        patch.setattr(torch.cuda, "current_stream", lambda device: stream)
        patch.setattr(torch.cuda, "Event", NoEvent)
        patch.setattr(shm, "_pin", lambda segment, device: segment.pin(0))
        yield
    assert library.fake_depth() == 0
