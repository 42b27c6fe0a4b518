"""The threads that compute: a pool for every thread count asked for, kept for good."""

import ctypes
import os
from functools import cache

import torch

from domino_kernels.native.library import library

_default = torch.get_num_threads()
_threads = _default


def use_threads(count: int, *, native: bool) -> None:
    """Computes with `count` threads from now on; 0 is as many as torch took at first.

    native: by native kernels. Torch itself then gets one: its own threads spin for a while after
    each of its operations, and would take the processors from the kernels that follow.
    """
    global _threads
    _threads = count or _default
    torch.set_num_threads(1 if native and library() else _threads)


def num_threads() -> int:
    """How many threads the native kernels compute with."""
    return _threads


def pool() -> ctypes.c_void_p:
    """The pool of that many threads; its callers take turns."""
    return _pool(os.getpid(), num_threads())


@cache
def _pool(process: int, threads: int) -> ctypes.c_void_p:
    """`process`: a forked process has none of the threads."""
    loaded = library()
    assert loaded is not None, "nothing is native without the library"
    return ctypes.c_void_p(loaded.pool_new(threads))
