"""FlexAttention in compiled layers against the dense oracle: hidden states and all gradients."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from benchmarks.gpu_draft_model import qwen3_8b_domino
from serving.draft_config import DraftConfig, LayerAttention
from serving.draft_tensors import draft_tensors
from training.draft import DraftForward
from training.rows import Anchors, Rows, choose_anchors

# Relative to the norm of the oracle's.
LIMITS = {torch.float32: 1e-4, torch.bfloat16: 3e-2}


def check_flex(device: torch.device) -> Iterator[str]:
    """One line a case; AssertionError where flex and dense differ."""
    base = replace(qwen3_8b_domino(), num_layers=1, vocab_size=1000, mask_token_id=999)
    small = replace(base, hidden_size=512, intermediate_size=1024, head_dim=64, num_heads=8)
    small = replace(small, num_kv_heads=2)
    sliding = LayerAttention(causal=True, window=64, window_moves=True)
    cases = [
        (replace(small, attention=(LayerAttention(),)), torch.float32, 640, 40),
        (replace(small, attention=(sliding,)), torch.float32, 640, 40),
        (replace(base, attention=(LayerAttention(),)), torch.bfloat16, 3072, 256),
    ]
    for config, dtype, length, count in cases:
        worst = _compare(config, dtype, length, count, device)
        assert worst <= LIMITS[dtype], f"flex differs by {worst} at {dtype}, {length} tokens"
        yield f"flex = dense: {dtype}, {length} tokens, {count} blocks: apart by {worst:.2e}"


def _compare(
    config: DraftConfig, dtype: torch.dtype, length: int, count: int, device: torch.device
) -> float:
    """Largest distance of hidden states and of any weight's gradient, relative to their norm."""
    rng = torch.Generator(device).manual_seed(1)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=rng, device=device)

    embedding = normal(config.vocab_size, config.hidden_size).to(dtype)
    weights = {
        name: (1 + 0.1 * normal(*shape) if len(shape) == 1 else normal(*shape) * shape[-1] ** -0.5)
        .to(dtype)
        .requires_grad_()
        for name, shape in draft_tensors(config).items()
        if name.startswith(("fc.", "hidden_norm.", "norm.", "layers."))
    }
    rows, anchors = _batch(config, length, count, rng, dtype)
    pull = normal(*anchors.columns.shape, config.block_size, config.hidden_size).to(dtype)
    found = []
    for flex in (False, True):
        hidden = DraftForward(config, embedding, flex=flex).hidden(weights, rows, anchors)
        hidden = hidden * anchors.live[..., None, None]
        slopes = torch.autograd.grad((hidden * pull).sum(), list(weights.values()))
        found.append([hidden.detach(), *slopes])
    return max(
        float((a.float() - b.float()).norm() / a.float().norm())
        for a, b in zip(*found, strict=True)
    )


def _batch(
    config: DraftConfig, length: int, count: int, rng: torch.Generator, dtype: torch.dtype
) -> tuple[Rows, Anchors]:
    """Two rows: of one document, and of two with padding and too few places for all blocks."""
    device = rng.device
    column = torch.arange(length, device=device)
    half, end = length // 2, length - 7
    starts = torch.stack([torch.zeros_like(column), (column >= half) * half])
    starts[1, end:] = length
    eligible = torch.ones(2, length - 1, dtype=torch.bool, device=device)
    eligible[1, : length - count // 2] = False
    eligible[1, end - 1 :] = False
    eligible[1, :3] = True
    uniform = torch.rand(2, length - 1, generator=rng, device=device)
    width = len(config.target_layer_ids) * config.hidden_size
    rows = Rows(
        ids=torch.randint(900, (2, length), generator=rng, device=device),
        supervised=starts < length,
        starts=starts,
        features=torch.randn(2, length, width, generator=rng, device=device).to(dtype),
    )
    return rows, choose_anchors(uniform, eligible, count)
