"""A CUDA kernel compiled for the CPU, where every thread of every CTA is a fiber."""

import ctypes
import subprocess
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from domino_kernels.cuda.program import HERE, Definitions

NAMES = Path(__file__).parent
WARPS = 2  # of a CTA; a GPU's has 16


@cache
def library(definitions: tuple[tuple[str, int], ...]) -> ctypes.CDLL:
    """The kernel of rollout.cu with these definitions."""
    parts = NAMES / "emulated_warp.h", HERE / "rollout.cu", NAMES / "emulated_main.h"
    flags = [f"-D{key}={value}" for key, value in definitions]
    command = ["g++", "-O1", "-std=c++17", "-w", "-fPIC", "-shared", *flags]
    with TemporaryDirectory() as folder:
        code, built = Path(folder) / "rollout.cpp", Path(folder) / "rollout.so"
        code.write_text("".join(f'#include "{part}"\n' for part in parts))
        done = subprocess.run(
            [*command, "-o", str(built), str(code)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return ctypes.CDLL(str(built))


def launch(definitions: Definitions, shared_bytes: int, *ranks: ctypes.Structure) -> None:
    """One rank's kernel, or those of all ranks at the same time; AssertionError where they hang."""
    run = library(tuple(sorted((dict(definitions) | {"WARPS": WARPS}).items())))
    array = (type(ranks[0]) * len(ranks))(*ranks)
    assert run.run_emulated(array, len(ranks), shared_bytes) == 0, "the CTAs wait for each other"
