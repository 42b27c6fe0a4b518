"""A draft with random weights at a real model's shapes, and passes of it to check and to time."""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from benchmarks.gpu_verify_model import RandomWeights
from benchmarks.rollout_generator import Generated
from domino_kernels.paged_kv import PagedKV
from domino_kernels.rollout import DominoRollout, Mode
from domino_serve.v1 import speculation_pb2 as spec
from draft_service.executor import Part
from draft_service.gpu_model import GpuDraft
from draft_service.gpu_step import Rollouts
from serving.checkpoint import Checkpoint
from serving.draft_config import DominoHead, DraftConfig, LayerAttention
from serving.rope_config import Rope

PAGE, LAYERS = 256, 5


def qwen3_8b_domino() -> DraftConfig:
    """Qwen3-8B-Domino-b16's sizes."""
    return DraftConfig(
        vocab_size=151936,
        hidden_size=4096,
        intermediate_size=12288,
        num_layers=LAYERS,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        rms_norm_eps=1e-6,
        rope=Rope(kind="default", theta=1e6),
        max_context=40960,
        attention_bias=False,
        output_bias=False,
        mlp_bias=False,
        qk_norm=True,
        format="authors",
        block_size=16,
        target_layer_ids=(1, 9, 17, 25, 33),
        mask_token_id=151669,
        attention=(LayerAttention(),) * LAYERS,
        shift_label=True,
        domino=DominoHead(gru_hidden_dim=1024, emb_dim=256),
        draft_vocab_size=151936,
    )


def random_checkpoint() -> Checkpoint:
    """Every tensor by name and shape, on the GPU; it has no files."""
    return cast(Checkpoint, RandomWeights(torch.bfloat16))


def random_draft(config: DraftConfig, embedding: Tensor) -> GpuDraft:
    """bfloat16 layers; embedding [vocab, hidden]."""
    return GpuDraft(
        config, random_checkpoint(), embedding, max_positions=16384, dtype=torch.bfloat16
    )


def rollouts(head: Generated, mode: Mode, max_batch: int, proposals: int) -> Rollouts:
    """Domino with a generated head."""
    domino = DominoRollout(
        head.weights, head.lm_head, head.embedding, mode, max_batch, proposals=proposals
    )
    return {spec.MODE_DOMINO: domino}


def random_kv(model: GpuDraft, pages: int) -> PagedKV:
    """Pages full of random keys and values."""
    kv = model.new_kv(pages, PAGE)
    kv.k.normal_()
    kv.v.normal_()
    return kv


def drafting(count: int, proposals: int, context: int, rows: int, pages: int) -> list[Part]:
    """So many sessions in random pages, which append `rows` rows and then have `context`."""
    rng = torch.Generator().manual_seed(count * 100 + proposals)
    each = -(-(context + 16) // PAGE)
    order = torch.randperm(pages, generator=rng).tolist()
    current = torch.randint(150000, (count,), generator=rng).tolist()
    return [
        Part(
            mode=spec.MODE_DOMINO,
            pages=order[i * each : (i + 1) * each],
            start=context - rows,
            rows=slice(i * rows, (i + 1) * rows),
            current=current[i],
            draft_tokens=proposals,
        )
        for i in range(count)
    ]


def random_rows(parts: Sequence[Part], hidden: int) -> Tensor:
    """The parts' new rows, on the host as they come from the wire."""
    rng = torch.Generator().manual_seed(1)
    return torch.randn(parts[-1].rows.stop, hidden, generator=rng).bfloat16()
