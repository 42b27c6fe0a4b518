"""From a checkpoint to what turns hidden rows into proposals on a GPU, for each mode it can run."""

import torch
from torch import Tensor

from domino_kernels.rollout import DominoRollout, Mode
from domino_kernels.rollout_base import BaseRollout
from domino_kernels.rollout_certified import LARGEST_BATCH
from domino_kernels.rollout_shard import VocabShard
from domino_kernels.rollout_tp import TpRollout
from domino_kernels.rollout_weights import DominoWeights
from domino_serve.v1 import speculation_pb2 as spec
from draft_service.gpu_dspark import DSparkRollout
from draft_service.gpu_step import Rollouts
from serving.checkpoint import Checkpoint
from serving.draft_config import DraftConfig
from serving.draft_tensors import DOMINO

# Where the certified scan is faster than all of W2 (benchmarks/rollout_h200_2026-11-29.md): up to
# so many sessions, and up to 16 for heads of at least so many bytes.
CERTIFIED_BATCH, LARGE_HEAD = 4, 100 * 10**6
TABLE_SHARE = 0.25  # of the free memory that the GRU's input table may take


def make_rollouts(
    config: DraftConfig,
    checkpoint: Checkpoint,
    embedding: Tensor,
    lm_head: Tensor,
    target_ids: Tensor | None,
    *,
    mode: Mode,
    max_batch: int,
    shard: VocabShard | None = None,
) -> Rollouts:
    """embedding [vocab, hidden], lm_head [rows, hidden] on the device -> DFlash, and Domino where
    the draft has its head; ValueError for a `mode` it cannot run. shard: the rows of the head that
    lm_head has, where other ranks have the others."""
    base = BaseRollout(lm_head, target_ids, shard)
    if config.dspark:
        dspark = DSparkRollout(config, checkpoint, lm_head, embedding)
        return {spec.MODE_DFLASH: base, spec.MODE_DSPARK: dspark}
    if config.domino is None:
        return {spec.MODE_DFLASH: base}

    def read(name: str, *shape: int) -> Tensor:
        return checkpoint.tensor(name, shape, lm_head.dtype).to(lm_head.device)

    hidden, vocab = config.hidden_size, config.vocab_size
    width, bottleneck = config.domino.gru_hidden_dim, config.domino.emb_dim
    w_ih, w_hh, w1, w2 = DOMINO
    weights = DominoWeights(
        w_ih=read(w_ih, 3 * width, hidden),
        w_hh=read(w_hh, 3 * width, width),
        w1=read(w1, bottleneck, hidden + width),
        w2=read(w2, vocab, bottleneck),
    )
    if mode == 0 and lm_head.is_cuda:
        mode = "certified"  # the same proposals from fewer bytes
    table = table_fits(vocab * 3 * width * 4, lm_head.device, shard)
    whole = weights, lm_head, embedding, mode, max_batch
    if shard:
        over_ranks = TpRollout(*whole, shard, proposals=config.max_draft_tokens, input_table=table)
        return {spec.MODE_DFLASH: base, spec.MODE_DOMINO: over_ranks}
    domino = DominoRollout(
        *whole,
        proposals=config.max_draft_tokens,
        input_table=table,
        certified_batch=LARGEST_BATCH if weights.w2.nbytes >= LARGE_HEAD else CERTIFIED_BATCH,
    )
    return {spec.MODE_DFLASH: base, spec.MODE_DOMINO: domino}


def table_fits(num_bytes: int, device: torch.device, shard: VocabShard | None = None) -> bool:
    """Whether the GRU's input table is worth its memory, on every rank."""
    if device.type != "cuda":
        return True
    too_large = num_bytes > TABLE_SHARE * torch.cuda.mem_get_info(device)[0]
    if shard is None:
        return not too_large
    anywhere = torch.tensor([int(too_large)], device=device)
    shard.maximum(anywhere)
    return not anywhere.item()
