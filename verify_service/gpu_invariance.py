"""What --deterministic promises of a GPU's products, tried on the target's layers at start."""

import torch

from domino_kernels.gpu.few_rows import GpuLinear
from serving.options import OptionError
from verify_service.gpu_target import GpuTarget

ROWS = (1, 2, 16, 17, 32, 33, 64, 65, 100, 128)
MOST = 200


@torch.inference_mode()
def check_row_invariance(target: GpuTarget) -> None:
    """Raises OptionError when a row's product depends on how many rows it is made with."""
    layer = target.layers[0]
    for name in ("qkv", "o", "gate_up", "down"):
        _check(name, getattr(layer, name), target)
    _check("head", target.head, target)


def _check(name: str, linear: GpuLinear, target: GpuTarget) -> None:
    width = linear.weight.shape[1]
    rng = torch.Generator(target.device).manual_seed(1)
    x = torch.randn(MOST, width, generator=rng, device=target.device).to(target.dtype)
    product = getattr(linear, "gated", lambda rows: linear(rows).transpose(0, 1))
    whole = product(x)
    for rows in ROWS:
        if not torch.equal(product(x[:rows]), whole[:rows]):
            raise OptionError(
                "deterministic", True, f"cannot be kept on this GPU: the product of {name} with "
                f"{rows} rows differs from that with {MOST}; leave it out",
            )  # fmt: skip
