"""Times of whole steps, of their linear layers by cuBLAS, of the running engine."""

import itertools
import queue
import statistics
import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu_verify_model import (
    PAGE,
    TAPS,
    decoding,
    qwen3_8b,
    random_kv,
    random_target,
    step_graphs,
)
from benchmarks.gpu_verify_timing import graph_us, replay_us
from verify_service.drafting import Drafting
from verify_service.engine import Engine
from verify_service.gpu_executor import GpuExecutor
from verify_service.gpu_target import GpuTarget
from verify_service.scheduler import Scheduler, Work
from verify_service.sequence import Chosen, Event, Request

CONTEXT = 640  # the middle of a prompt of 512 and 256 new tokens
LONG = 8192
STEPS = ((1, 1), (8, 1), (32, 1), (1, 8), (8, 8), (1, 16), (8, 16), (32, 8), (32, 16))
PROMPT, NEW = 512, 256


def cublas_ms(target: GpuTarget, rows: int) -> float:
    """All linear layers and the head by cuBLAS, one after the other, nothing between."""
    inputs: dict[int, Tensor] = {}
    weights = [
        linear.weight
        for layer in target.layers
        for linear in (layer.qkv, layer.o, layer.gate_up, layer.down)
    ]
    weights.append(target.head.weight)
    for w in weights:
        x = torch.randn(rows, w.shape[1], device="cuda").to(w.dtype)
        inputs.setdefault(w.shape[1], x)
    outs = {len(w): inputs[w.shape[1]].new_empty(rows, len(w)) for w in weights}

    def work() -> None:
        for w in weights:
            torch.mm(inputs[w.shape[1]], w.T, out=outs[len(w)])

    return graph_us(work) / 1000


@torch.inference_mode()
def time_steps() -> list[dict[str, Any]]:
    """One row a (batch, width, context): the graph's time, with the reference of its rows.

    Width 1 is plain decoding and projects nothing; wider steps project five taps.
    """
    kv_pages = 32 * (LONG // PAGE + 1)
    plain = random_target(qwen3_8b(), torch.bfloat16)
    kv = random_kv(plain, kv_pages)
    references = {n: cublas_ms(plain, n) for n in sorted({b * w for b, w in STEPS})}
    found = []
    for target in (plain, None):
        if target is None:
            target, table = _projecting(plain), kv.k.new_zeros(kv_pages * PAGE, 4096)
        else:
            table = None
        for batch, width in STEPS:
            if (width == 1) == (table is not None):
                continue
            steps = step_graphs(target, kv, batch, width, table)
            row: dict[str, Any] = {"batch": batch, "width": width}
            row["cublas_ms"] = references[batch * width]
            for context in (CONTEXT, LONG):
                step = steps.step(batch, width)
                step.bucket.fill(decoding(batch, width, context, kv_pages, 151936))
                row[f"ms_{context}"] = replay_us(step.graph) / 1000
            row["over_cublas"] = row[f"ms_{CONTEXT}"] / row["cublas_ms"]
            found.append(row)
            print(row, flush=True)
            del steps, step
    return found


def _projecting(plain: GpuTarget) -> GpuTarget:
    """The same target with a projection, on the same weights."""
    target = random_target(qwen3_8b(layers=0, vocab=256), torch.bfloat16, TAPS)
    vars(plain).update(projection=target.projection, _taps=target._taps)
    return plain


class _Timed(GpuExecutor):
    """Notes when each step began and whom it served."""

    def start(self, work: Seq[Work]) -> Callable[[], list[Chosen]]:
        self.begins.append((time.perf_counter(), sum(not w.sequence.in_prefill for w in work)))
        return super().start(work)

    begins: list[tuple[float, int]]


def time_engine() -> list[dict[str, Any]]:
    """Plain decoding through the engine loop, host work included: tokens/s between steps."""
    target = random_target(qwen3_8b(), torch.bfloat16)
    executor = _Timed(target, pages=32 * 4, page_size=PAGE, max_sequences=32, widths=[1])
    found = []
    for clients in (1, 8, 32):
        executor.begins = []
        scheduler = Scheduler(pages=32 * 4, page_size=PAGE, max_sequences=32, prefill_tokens=2048)
        drafting = Drafting(executor.rows, 151936, step_s=1, timeout_s=1)
        engine = Engine(executor, scheduler, drafting, max_waiting=0)
        engine.start()
        events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        began = time.perf_counter()
        for i in range(clients):
            engine.submit(
                Request(
                    request_id=str(i),
                    prompt_ids=[(7 * i + j * j) % 151936 for j in range(PROMPT)],
                    max_tokens=NEW,
                    stop_ids=frozenset(),
                    emit=events.put,
                )
            )
        engine.idle.wait(1)
        while engine.num_live():
            time.sleep(0.01)
        wall = time.perf_counter() - began
        engine.stop()
        full = [at for at, served in executor.begins if served == clients]
        step = statistics.median(b - a for a, b in itertools.pairwise(full))
        found.append(
            {"clients": clients, "step_ms": step * 1000, "tok_s": clients / step}
            | {"prefill_s": full[0] - began, "wall_s": wall}
        )
        print(found[-1], flush=True)
    return found
