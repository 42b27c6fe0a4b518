"""A draft's weights on a GPU: checkpoint in, what makes an executor for given draft KV out."""

from dataclasses import dataclass

import torch

from domino_kernels.paged_kv import PagedKV
from domino_kernels.rollout_shard import VocabShard
from draft_service.config import DraftServiceConfig
from draft_service.gpu_executor import GpuExecutor
from draft_service.gpu_model import GpuDraft
from draft_service.gpu_rollout import make_rollouts
from draft_service.gpu_step import Rollouts, batch_buckets
from draft_service.tables import Tables
from serving.checkpoint import Checkpoint
from serving.draft_config import DraftConfig
from serving.options import OptionError
from serving.tensors import DTYPES


@dataclass(frozen=True, slots=True)
class GpuNetwork:
    """Weights for `GpuExecutor`."""

    model: GpuDraft
    rollouts: Rollouts
    max_sessions: int

    def new_kv(self, pages: int, page_size: int) -> PagedKV:
        """An empty draft KV cache."""
        return self.model.new_kv(pages, page_size)

    def executor(self, kv: PagedKV) -> GpuExecutor:
        """Captures the steps of these weights; raises torch.OutOfMemoryError."""
        return GpuExecutor(self.model, self.rollouts, kv, max_sessions=self.max_sessions)


def read_gpu_network(
    config: DraftServiceConfig,
    draft: DraftConfig,
    checkpoint: Checkpoint,
    tables: Tables,
    max_positions: int,
    shard: VocabShard | None = None,
) -> GpuNetwork:
    """Raises OptionError naming what the device's memory or the kernels do not allow.

    shard: this rank's rows of the head.
    """
    try:
        model = GpuDraft(
            draft, checkpoint, tables.embedding, max_positions=max_positions,
            dtype=DTYPES[config.dtype],
        )  # fmt: skip
        rollouts = make_rollouts(
            draft,
            checkpoint,
            tables.embedding,
            tables.lm_head.weight,
            tables.target_ids,
            mode=config.candidates,
            max_batch=batch_buckets(config.max_sessions)[-1],
            shard=shard,
        )
    except torch.OutOfMemoryError:
        raise OptionError(
            "dtype", config.dtype, "the draft's weights exceed the device's memory; take a dtype "
            "of fewer bytes, or fewer max_sessions",
        ) from None  # fmt: skip
    except ValueError as error:
        raise OptionError("domino_candidates", config.domino_candidates, str(error)) from error
    return GpuNetwork(model, rollouts, config.max_sessions)
