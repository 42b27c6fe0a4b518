"""What a step of a draft and of its target takes: one CUDA graph each, replayed.

Training's batched code for all heads alike, not the services' tuned kernels: the times compare
heads with each other.
"""

import statistics
import time
from collections.abc import Callable
from functools import partial

import torch

from training.generate import captured
from training.speculate import Speculation

CONTEXT, BATCHES, REPLAYS, ROUNDS = 512, (1, 8), 20, 5


@torch.no_grad()
def step_times(speculation: Speculation, width: int) -> dict[str, float]:
    """Milliseconds: draft_c1, draft_c8 (`width` - 1 proposals), verify_c1, verify_c8."""
    found = {}
    for count in BATCHES:
        length = CONTEXT + 2 * width
        caches = speculation.new_kv(count, length)
        for kv in caches:
            kv.k.normal_()
            kv.v.normal_()
        device = speculation.target.device
        committed = torch.full((count,), CONTEXT, device=device)
        ids = torch.randint(1000, (count, width), device=device)
        sampler = speculation.sampler()

        draft = partial(speculation.propose, sampler, committed, ids[:, 0], caches[1])
        verify = partial(speculation.verify, ids, committed, caches, length)
        found[f"draft_c{count}"] = _milliseconds(partial(draft, length, width - 1))
        found[f"verify_c{count}"] = _milliseconds(verify)
    return found


def _milliseconds(step: Callable[[], object]) -> float:
    """Median of some rounds."""
    graph = captured(step, [])
    rounds = []
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        began = time.monotonic()
        for _ in range(REPLAYS):
            graph.replay()
        torch.cuda.synchronize()
        rounds.append((time.monotonic() - began) / REPLAYS * 1e3)
    return round(statistics.median(rounds), 4)
