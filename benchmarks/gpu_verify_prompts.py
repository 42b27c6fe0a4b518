"""Prompts in chunks, and steps as contexts grow to the model's limit, on one GPU.

Random weights of Qwen3-8B's shapes, bfloat16. MFU counts the products of the linear layers and of
causal attention, over the GPU's nominal rate and over what cuBLAS reaches in the same run.
"""

import time
from typing import Any

import torch

from benchmarks.gpu_verify_model import (
    PAGE,
    decoding,
    qwen3_8b,
    random_kv,
    random_target,
    step_graphs,
)
from benchmarks.gpu_verify_timing import graph_us, replay_us
from domino_kernels.paged_kv import PagedKV
from serving.target_config import TargetConfig
from verify_service.gpu_prompts import PromptGraphs, row_buckets
from verify_service.gpu_target import GpuTarget
from verify_service.scheduler import Work
from verify_service.sequence import Request, Sequence

NOMINAL = 989e12  # dense bfloat16 products of an H200
CHUNKS = ((512, 256), (512, 512), (4096, 256), (4096, 2048), (32768, 2048))
CONTEXTS = (640, 2048, 8192, 16384, 32768, 40944)  # the last one and 16 rows are the limit
STEPS = ((1, 1), (1, 16), (8, 1), (8, 16))


def matmul_rate() -> float:
    """Flop/s of a large product by cuBLAS."""
    a, b = (torch.randn(8192, 8192, device="cuda").bfloat16() for _ in range(2))
    return 2 * 8192**3 / graph_us(lambda: torch.mm(a, b)) * 1e6


def flop(config: TargetConfig, tokens: int) -> float:
    """Of a prompt: every linear layer for every token, the head once, causal attention."""
    c, heads = config, config.num_heads * config.head_dim
    kv = config.num_kv_heads * c.head_dim
    layer = 2 * c.hidden_size * (2 * heads + 2 * kv + 3 * c.intermediate_size)
    attention = 4 * heads * tokens * (tokens + 1) / 2
    return c.num_layers * (layer * tokens + attention) + 2 * c.hidden_size * c.vocab_size


@torch.inference_mode()
def time_prompts(target: GpuTarget, kv: PagedKV, rate: float) -> list[dict[str, Any]]:
    """A row a (prompt, chunk): tokens/s, indices and the head included; one prompt at a time."""
    found = []
    for tokens, chunk in CHUNKS:
        passes = PromptGraphs(target, kv, None, pages=160, rows=row_buckets(chunk)[-1:])
        passes.capture(torch.cuda.graph_pool_handle())
        times = [_prompt_s(target, passes, tokens, chunk) for _ in range(4)][1:]
        seconds = sorted(times)[1]
        reached = flop(target.config, tokens) / seconds
        row = {"tokens": tokens, "chunk": chunk, "seconds": seconds, "tok_s": tokens / seconds}
        found.append(row | {"mfu": reached / NOMINAL, "of_cublas": reached / rate})
        print(found[-1], flush=True)
    return found


def _prompt_s(target: GpuTarget, passes: PromptGraphs, tokens: int, chunk: int) -> float:
    request = Request(request_id="", prompt_ids=[], max_tokens=1, stop_ids=frozenset(), emit=print)
    sequence = Sequence(request, pages=list(range(-(-tokens // PAGE))))
    ids = [(7 * i) % 151936 for i in range(tokens)]
    torch.cuda.synchronize()
    began = time.perf_counter()
    for first in range(0, tokens, chunk):
        sequence.kv_len = first
        work = [Work(sequence=sequence, ids=ids[first : first + chunk], choices=1)]
        normed = passes.run(work)
        torch.cuda.synchronize()  # as the engine, which reads whether the rows are numbers
    target.logits(normed[:1]).argmax(-1).tolist()
    return time.perf_counter() - began


@torch.inference_mode()
def time_contexts(target: GpuTarget, kv: PagedKV, copy_tb_s: float) -> list[dict[str, Any]]:
    """A row a (batch, width, context): ms a step, and what grew since the shortest over the keys'
    and values' bytes at a copy's bandwidth."""
    c, found = target.config, []
    position = 2 * c.num_layers * c.num_kv_heads * c.head_dim * target.dtype.itemsize
    for batch, width in STEPS:
        steps = step_graphs(target, kv, batch, width, None)
        step, first = steps.step(batch, width), 0.0
        for context in CONTEXTS:
            step.bucket.fill(decoding(batch, width, context, kv.k.shape[1], 151936))
            ms = replay_us(step.graph, replays=3) / 1000
            first = first or ms
            bytes_ms = batch * (context - CONTEXTS[0]) * position / copy_tb_s / 1e9
            row = {"batch": batch, "width": width, "context": context, "ms": ms}
            found.append(row | {"keys_ms": bytes_ms, "grown_ms": ms - first})
            print({k: round(v, 3) for k, v in found[-1].items()}, flush=True)
        del steps, step
    return found


def time_long(copy_tb_s: float) -> dict[str, Any]:
    """Both tables, with the rate that cuBLAS reaches."""
    target = random_target(qwen3_8b(), torch.bfloat16)
    kv = random_kv(target, 8 * (40960 // PAGE))
    rate = matmul_rate()
    return {
        "matmul_tflop_s": rate / 1e12,
        "prompts": time_prompts(target, kv, rate),
        "contexts": time_contexts(target, kv, copy_tb_s),
    }
