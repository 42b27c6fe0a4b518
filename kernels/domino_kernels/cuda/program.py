"""CUDA C compiled for the GPU at hand, and its launch; needs cuda-bindings.

Source and definitions in, a kernel out that takes one struct of parameters.
"""

import ctypes
import hashlib
import logging
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ..native.library import cache_dir

HERE = Path(__file__).parent
Definitions = Mapping[str, int]

log = logging.getLogger(__name__)


class CudaError(RuntimeError):
    """A call of the CUDA driver or of the run-time compiler failed; says which and why."""


def available() -> bool:
    """Whether programs can be compiled here."""
    try:
        from cuda.bindings import driver, nvrtc  # noqa: F401
    except ImportError:
        return False
    return True


def source(name: str) -> str:
    """A kernel's text behind that of the names it uses."""
    return (HERE / "warp.cuh").read_text() + (HERE / f"{name}.cu").read_text()


class CudaKernel:
    """The kernel `name` of `name`.cu, for one device and one set of definitions."""

    def __init__(
        self, name: str, definitions: Definitions, shared_bytes: int, *, together: bool = True
    ) -> None:
        """shared_bytes: dynamic shared memory of a CTA.

        together: all CTAs run at the same time or none does. Else they may start while the kernel
        before drains, and have to wait for it themselves.
        """
        from cuda.bindings import driver

        binary = compiled(name, tuple(sorted(definitions.items())), _architecture())
        self._module = check(driver.cuModuleLoadData(binary))
        self._function = check(driver.cuModuleGetFunction(self._module, name.encode()))
        limit = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        check(driver.cuFuncSetAttribute(self._function, limit, shared_bytes))
        self._shared_bytes, self._together = shared_bytes, together

    def launch(self, ctas: int, threads: int, params: ctypes.Structure) -> None:
        """On torch's current stream."""
        from cuda.bindings import driver

        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = ctas, 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = threads, 1, 1
        config.sharedMemBytes = self._shared_bytes
        config.hStream = torch.cuda.current_stream().cuda_stream
        way, ids = driver.CUlaunchAttribute(), driver.CUlaunchAttributeID
        if self._together:
            way.id, way.value.cooperative = ids.CU_LAUNCH_ATTRIBUTE_COOPERATIVE, 1
        else:
            way.id = ids.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            way.value.programmaticStreamSerializationAllowed = 1
        config.attrs, config.numAttrs = [way], 1
        arguments = (ctypes.c_void_p * 1)(ctypes.addressof(params))
        check(driver.cuLaunchKernelEx(config, self._function, ctypes.addressof(arguments), 0))


def compiled(name: str, definitions: tuple[tuple[str, int], ...], architecture: str) -> bytes:
    """The machine code, from the user's cache where it was compiled before."""
    from cuda.bindings import nvrtc

    options = [f"--gpu-architecture={architecture}", "-default-device", "--std=c++17"]
    options += [f"-D{key}={value}" for key, value in definitions]
    text, version = source(name), check(nvrtc.nvrtcVersion())
    key = hashlib.sha256(f"{version} {options} {text}".encode()).hexdigest()[:16]
    file = cache_dir() / f"{name}-{key}.cubin"
    if file.exists():
        return file.read_bytes()
    binary = _compile(name, text, options)
    keep(binary, file)
    return binary


def keep(binary: bytes, file: Path) -> None:
    """For the next start; where nothing can be written that one compiles again."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=file.parent, delete=False) as built:
            built.write(binary)
        Path(built.name).replace(file)  # several processes may do this at the same time
    except OSError as error:
        log.warning("compiled kernels cannot be kept: %s", error)


def _compile(name: str, text: str, options: list[str]) -> bytes:
    """Raises CudaError with the compiler's words."""
    from cuda.bindings import nvrtc

    program = check(nvrtc.nvrtcCreateProgram(text.encode(), f"{name}.cu".encode(), 0, [], []))
    (result,) = nvrtc.nvrtcCompileProgram(program, len(options), [o.encode() for o in options])
    if result != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        log = b" " * check(nvrtc.nvrtcGetProgramLogSize(program))
        check(nvrtc.nvrtcGetProgramLog(program, log))
        raise CudaError(f"{name}.cu: {log.decode()}")
    binary: bytes = b" " * check(nvrtc.nvrtcGetCUBINSize(program))
    check(nvrtc.nvrtcGetCUBIN(program, binary))
    return binary


def shared_limit(device: torch.device) -> int:
    """Bytes of shared memory that a CTA can have."""
    from cuda.bindings import driver

    names = driver.CUdevice_attribute
    limit = names.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
    index = torch.cuda.current_device() if device.index is None else device.index
    found: int = check(driver.cuDeviceGetAttribute(limit, index))
    return found


def _architecture() -> str:
    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}a" if major >= 9 else f"sm_{major}{minor}"  # a: what only it has


def check(answer: tuple[Any, ...]) -> Any:
    """The values behind the result code, which must be success."""
    result, *values = answer
    if int(result) != 0:
        raise CudaError(f"{result!r}")
    return values[0] if len(values) == 1 else values or None
