"""Arithmetic of a draft's training step: sizes in, floating point operations out.

Model operations only: what a forward and a backward pass need, nothing that is computed twice.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from serving.draft_config import DraftConfig
from serving.target_config import TargetConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One micro-batch. rows of `tokens` context columns; slots: of all blocks of all rows; pairs:
    a query and a key that it sees, of one head and layer."""

    rows: int
    tokens: int
    slots: int
    pairs: int


def draft_flops(config: DraftConfig, work: Work) -> dict[str, int]:
    """Forward and backward by part. A frozen matrix has no gradient of its own, and what reads
    features or embeddings passes none on."""
    hidden, vocab, slots = config.hidden_size, config.vocab_size, work.slots
    context = work.rows * work.tokens
    q = config.num_heads * config.head_dim
    kv = config.num_kv_heads * config.head_dim
    layer = slots * hidden * (2 * q + 3 * config.intermediate_size)
    layer += (context + slots) * hidden * 2 * kv
    found = {
        "features": 2 * context * len(config.target_layer_ids) * hidden * hidden,
        "layers": 3 * config.num_layers * layer,
        "attention": 3 * config.num_layers * 2 * work.pairs * q,
        "lm_head": 2 * slots * hidden * vocab,
        "head": 0,
    }
    if head := config.domino:
        width, small = head.gru_hidden_dim, head.emb_dim
        gru = 2 * 3 * width * hidden + 3 * 3 * width * width
        found["head"] = slots * (gru + 3 * (hidden + width + vocab) * small)
    return {part: 2 * multiply_adds for part, multiply_adds in found.items()}


def target_flops(config: TargetConfig, work: Work) -> int:
    """Forward of the rows' layers as whole documents; features need no head."""
    q, kv = (n * config.head_dim for n in (config.num_heads, config.num_kv_heads))
    layer = config.hidden_size * (2 * q + 2 * kv + 3 * config.intermediate_size)
    pairs = work.rows * work.tokens * (work.tokens + 1) // 2
    each = work.rows * work.tokens * layer + 2 * pairs * q
    return 2 * config.num_layers * each


def total(parts: Mapping[str, int]) -> int:
    return sum(parts.values())
