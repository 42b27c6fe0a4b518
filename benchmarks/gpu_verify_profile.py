"""Where a verify step's time goes on one GPU: microseconds by kernel, from profiled replays.

Random weights, Qwen3-8B shapes, bfloat16. `python -m benchmarks.gpu_verify_profile 8x16 32x1`.
"""

import argparse
import re
from collections import defaultdict

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu_verify_model import (
    decoding,
    qwen3_8b,
    random_kv,
    random_target,
    step_graphs,
)
from benchmarks.gpu_verify_times import CONTEXT
from benchmarks.gpu_verify_timing import replay_us

REPLAYS, PAGES = 4, 128


@torch.inference_mode()
def main() -> None:
    """Prints each step's time and its parts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("steps", nargs="+", help="BATCHxWIDTH")
    options = parser.parse_args()
    target = random_target(qwen3_8b(), torch.bfloat16)
    kv = random_kv(target, PAGES)
    for name in options.steps:
        batch, width = map(int, name.split("x"))
        step = step_graphs(target, kv, batch, width, None).step(batch, width)
        step.bucket.fill(decoding(batch, width, CONTEXT, PAGES, 151936))
        print(f"{name}: {replay_us(step.graph):.0f} us a step", flush=True)
        print_kernels(step.graph)


def print_kernels(graph: torch.cuda.CUDAGraph) -> None:
    """A line a kernel; where one may start early, its time includes its wait."""
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        for _ in range(REPLAYS):
            graph.replay()
        torch.cuda.synchronize()
    spent: dict[str, list[float]] = defaultdict(list)
    for event in found.events():
        spent[re.sub(r"<.*", "", event.name)[:70]].append(event.device_time_total)
    for kernel, times in sorted(spent.items(), key=lambda item: -sum(item[1])):
        total, count = sum(times) / REPLAYS, len(times) / REPLAYS
        if total >= 1:
            print(f"{total:8.0f} us {count:6.0f} x {total / count:7.2f}  {kernel}")


if __name__ == "__main__":
    main()
