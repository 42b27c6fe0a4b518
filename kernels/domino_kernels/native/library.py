"""Compiles the C files beside this one for this processor, once, and loads the result.

The library lies in the user's cache under a name that changes with the sources, the compiler and
the processor. Without a compiler there is no library, and the callers compute with torch.
"""

import ctypes
import hashlib
import importlib.util
import logging
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

log = logging.getLogger(__name__)

HERE = Path(__file__).parent
# Contraction is asked for by name: exactness needs every product fused alike, and the compilers'
# defaults differ.
FLAGS = ("-O3", "-march=native", "-ffp-contract=fast", "-std=gnu11", "-fPIC", "-shared", "-pthread")
SWITCH = "DOMINO_NATIVE"
_SLOWER = "CPU kernels: torch's, which are several times slower: %s"


class NoCompiler(Exception):
    """There is no C compiler, or it could not build the kernels; says why and what helps."""


@cache
def library() -> ctypes.CDLL | None:
    """The kernels, or None where they cannot be built or $DOMINO_NATIVE is 0 (logged, once)."""
    if os.environ.get(SWITCH) == "0":
        log.warning("CPU kernels: torch's, since %s is 0", SWITCH)
        return None
    try:
        return _load()
    except NoCompiler as reason:
        log.warning(_SLOWER, reason)
    except OSError as error:  # nothing can be written there, or nothing may run from there
        log.warning(_SLOWER, f"{error}; name another folder in $XDG_CACHE_HOME")
    return None


def has_int8() -> bool:
    """Whether there is a kernel for weights of 8 bits (AVX-512 VNNI)."""
    loaded = library()
    return loaded is not None and bool(loaded.domino_has_int8())


def _load() -> ctypes.CDLL:
    compiler = _compiler()
    file = cache_dir() / f"kernels-{_key(compiler)}.so"
    if not file.exists():
        _compile(compiler, file)
    loaded = ctypes.CDLL(str(file))
    loaded.pool_new.restype = ctypes.c_void_p
    return loaded


def _compiler() -> list[str]:
    names = filter(None, (os.environ.get("CC"), "cc", "gcc", "clang"))
    for name in names:
        if found := shutil.which(name):
            return [found]
    if importlib.util.find_spec("ziglang"):
        return [sys.executable, "-m", "ziglang", "cc"]
    raise NoCompiler("no C compiler found; install gcc or clang, or `pip install ziglang`")


def _compile(compiler: Sequence[str], file: Path) -> None:
    """Builds into a temporary file first: several processes may do this at the same time."""
    log.info("building the CPU kernels for this processor (a few seconds, once)")
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:
        built = Path(folder) / "kernels.so"
        sources = [str(source) for source in sorted(HERE.glob("*.c"))]
        command = [*compiler, *FLAGS, "-o", str(built), *sources, "-lm"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise NoCompiler(f"{' '.join(compiler)} failed: {done.stderr.strip()[-500:]}")
        built.replace(file)


def _key(compiler: Sequence[str]) -> str:
    """Changes with everything that the built code depends on."""
    about = (*compiler, *FLAGS, platform.machine(), _processor())
    digest = hashlib.sha256(" ".join(about).encode())
    for source in sorted(HERE.glob("*.[ch]")):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def _processor() -> str:
    """What `-march=native` looks at; the home folder may be shared by different machines."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor()
    lines = text.split("\n\n")[0].splitlines()
    return "\n".join(line for line in lines if line.startswith(("model name", "flags", "Features")))


def cache_dir() -> Path:
    """Where compiled kernels of this user are kept."""
    home = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    return home / "domino-kernels"
