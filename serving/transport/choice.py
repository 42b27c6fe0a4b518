"""What --data-plane allows on a device: memory that verify offers, and that draft takes."""

from collections.abc import Mapping
from functools import partial

import torch

from serving.options import OptionError
from serving.transport.cuda_ipc import CudaPool, MappedCuda
from serving.transport.nccl import MappedNccl, OwnNccl
from serving.transport.plane import CUDA_IPC, NCCL, SHM, MakeMemory, MapMemory, Plane
from serving.transport.shm import MappedShm, OwnShm


def offered(name: str, device: torch.device) -> Mapping[Plane, MakeMemory]:
    """A verify service's, the fastest first; none is inline. Raises OptionError."""
    kinds: dict[Plane, MakeMemory] = {
        SHM: partial(OwnShm, device=device),
        NCCL: partial(OwnNccl, device),
    }
    if device.type == "cuda":
        kinds[CUDA_IPC] = CudaPool(device).take
    return {plane: kinds[plane] for plane in _chosen(name, device)}


def taken(name: str, device: torch.device) -> Mapping[Plane, MapMemory]:
    """A draft service's. Raises OptionError."""
    kinds: dict[Plane, MapMemory] = {
        SHM: partial(MappedShm, device=device),
        NCCL: partial(MappedNccl, device=device),
    }
    if device.type == "cuda":
        kinds[CUDA_IPC] = lambda offer: MappedCuda(offer, device)
    return {plane: kinds[plane] for plane in _chosen(name, device)}


def _chosen(name: str, device: torch.device) -> list[Plane]:
    if name == "cuda-ipc" and device.type != "cuda":
        raise OptionError("data_plane", name, f"needs --device cuda, not {device}")
    by_device = [SHM, CUDA_IPC] if device.type == "cuda" else [SHM]
    named = {"inline": [], "shm": [SHM], "cuda-ipc": [CUDA_IPC], "nccl": [NCCL]}
    return by_device if name == "auto" else named[name]
