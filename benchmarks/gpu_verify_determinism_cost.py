"""What --deterministic costs eight sequences a step: random weights of Qwen3-8B shapes, bf16."""

from typing import Any

import torch

from benchmarks.gpu_verify_model import decoding, qwen3_8b, random_kv, random_target, step_graphs
from benchmarks.gpu_verify_times import CONTEXT
from benchmarks.gpu_verify_timing import replay_us

BATCH, WIDTHS, PAGES = 8, (1, 16), 64


@torch.inference_mode()
def cost_c8() -> dict[str, Any]:
    """Milliseconds a step in both modes by width, their ratios and the larger one."""
    found: dict[str, Any] = {}
    for fixed in (False, True):
        target = random_target(qwen3_8b(), torch.bfloat16, deterministic=fixed)
        kv = random_kv(target, PAGES)
        for width in WIDTHS:
            step = step_graphs(target, kv, BATCH, width, None).step(BATCH, width)
            step.bucket.fill(decoding(BATCH, width, CONTEXT, PAGES, 151936))
            found[f"w{width}_{'fixed' if fixed else 'default'}_ms"] = replay_us(step.graph) / 1000
        del target, kv, step
    ratios = {w: found[f"w{w}_fixed_ms"] / found[f"w{w}_default_ms"] for w in WIDTHS}
    print(found, ratios, flush=True)
    return found | {"ratios": ratios, "worst": max(ratios.values())}
