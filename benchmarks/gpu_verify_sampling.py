"""What drawing tokens costs within a step's graph on one GPU, beside taking the highest logits.

Rows of Qwen3's vocabulary: "flat" ones are noise, where no part of a row can be passed over; in
"peaked" ones some hundred tokens stand out, as in a model's.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu_verify_timing import graph_us
from domino_kernels.gpu.accept import greedy_accept, sampling_accept

VOCAB = 151936
SETTINGS = {
    "temperature": (0.7, 0, 1.0, 0.0),
    "top-p 0.95": (0.7, 0, 0.95, 0.0),
    "top-k 20, top-p 0.95": (0.6, 20, 0.95, 0.0),
}
SHAPES = ((1, 1), (8, 1), (32, 1), (1, 16), (8, 16), (32, 8))


@torch.inference_mode()
def time_sampling() -> list[dict[str, Any]]:
    """A row a (batch, width): microseconds of acceptance, greedy and by settings and logits."""
    found = []
    for batch, width in SHAPES:
        row: dict[str, Any] = {"batch": batch, "width": width}
        flat = torch.randn(batch * width, VOCAB, device="cuda").mul_(2).bfloat16()
        peaked = flat.clone()
        peaked[:, ::997] += 12
        ids = torch.zeros(batch, width, dtype=torch.int32, device="cuda")
        counts = torch.full((batch,), width, dtype=torch.int32, device="cuda")
        row["greedy alone"] = graph_us(partial(greedy_accept, flat, ids, counts))
        row["all greedy"] = _sampling_us(flat, ids, counts, (0.0, 0, 1.0, 0.0))
        for name, knobs in SETTINGS.items():
            row[f"flat, {name}"] = _sampling_us(flat, ids, counts, knobs)
            row[f"peaked, {name}"] = _sampling_us(peaked, ids, counts, knobs)
        found.append(row)
        print({k: round(v, 1) for k, v in row.items()}, flush=True)
    return found


def _sampling_us(logits: Tensor, ids: Tensor, counts: Tensor, settings: tuple[float, ...]) -> float:
    knobs = torch.tensor([[*settings, 1e-300]] * len(ids), dtype=torch.float64, device="cuda")
    positions = torch.arange(len(logits), dtype=torch.int32, device="cuda")
    return graph_us(partial(sampling_accept, logits, ids, counts, positions, knobs))
