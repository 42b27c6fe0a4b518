"""What turns ids into hidden states and back: the target's embedding and head, or the draft's own.

A draft of the speculators format may have its own, and a head over a part of the vocabulary only.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from domino_kernels.linear import Linear
from domino_kernels.rollout_shard import VocabShard
from serving.checkpoint import Checkpoint
from serving.draft_config import DraftConfig
from serving.draft_tensors import FROM_TARGET, TO_TARGET
from serving.errors import CheckpointError
from serving.target_config import EMBEDDING, TargetConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """embedding [vocab, hidden] of the target's ids; lm_head hidden -> rows.

    target_ids [rows]: the target's id of each row of the head; None when the rows are its ids.
    """

    embedding: Tensor
    lm_head: Linear
    target_ids: Tensor | None = None


def read_tables(
    draft: DraftConfig,
    checkpoint: Checkpoint,
    target: TargetConfig,
    target_checkpoint: Checkpoint,
    *,
    dtype: torch.dtype,
    device: torch.device,
    shard: VocabShard | None = None,
) -> Tables:
    """The draft's own tables where it has them, else the target's; CheckpointError on bad ids.

    shard: the rows of the head that this rank holds; None is all.
    """

    def read(source: Checkpoint, name: str, rows: int) -> Tensor:
        return source.tensor(name, (rows, draft.hidden_size), dtype).to(device)

    if draft.own_embedding:
        embedding = read(checkpoint, "embed_tokens.weight", draft.vocab_size)
    else:
        embedding = read(target_checkpoint, EMBEDDING, target.vocab_size)
    if draft.own_head:
        head = read(checkpoint, "lm_head.weight", draft.draft_vocab_size)
    elif target.tied_embeddings and not draft.own_embedding:
        head = embedding
    else:
        head = read(target_checkpoint, target.lm_head_name, target.vocab_size)
    ids = _target_ids(draft, checkpoint).to(device) if TO_TARGET in checkpoint.tensors else None
    head = shard.rows(head) if shard else head
    return Tables(embedding=embedding, lm_head=Linear(head), target_ids=ids)


def _target_ids(draft: DraftConfig, checkpoint: Checkpoint) -> Tensor:
    """The target's id of each row: d2t holds the difference, not the id."""
    size = draft.draft_vocab_size
    ids = torch.arange(size) + checkpoint.tensor(TO_TARGET, (size,), torch.int64)
    wrong = (ids < 0) | (ids >= draft.vocab_size)
    if wrong.any():
        row = int(wrong.nonzero()[0])
        raise CheckpointError(
            f"{checkpoint.path}: d2t[{row}] is {int(ids[row]) - row}: row {row} would be id "
            f"{int(ids[row])}, the target has {draft.vocab_size} ids (d2t holds id - row)"
        )
    if FROM_TARGET in checkpoint.tensors:
        chosen = checkpoint.tensor(FROM_TARGET, (draft.vocab_size,), torch.bool).nonzero()[:, 0]
        if not torch.equal(chosen, ids.sort().values):
            raise CheckpointError(
                f"{checkpoint.path}: t2d marks other ids than d2t leads to (d2t holds id - row)"
            )
    return ids
