"""The rollout on one of two gloo ranks, called in a process of its own."""

import atexit
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor

from domino_kernels.rollout import Mode
from domino_kernels.rollout_shard import VocabShard
from domino_kernels.rollout_tp import TpRollout, Way
from domino_kernels.rollout_weights import DominoWeights
from serving.ranks import leave_gloo
from tests.kernels.recorded_head import recorded_head, tied


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A head, whole, and what it is run on: hidden [B, n, H], current [B]."""

    weights: DominoWeights
    lm_head: Tensor
    embedding: Tensor
    hidden: Tensor
    current: Tensor


def join(rank: int, store: str) -> dist.ProcessGroup:
    """store: a file that both ranks can reach and that does not exist yet."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    atexit.register(leave_gloo)
    group = dist.group.WORLD
    assert group is not None
    return group


def propose(
    case: Case, group: dist.ProcessGroup, padded: int | None, mode: Mode, way: Way
) -> Tensor:
    """This rank's proposals [B, n]; padded: rows a rank, None for as few as there can be."""
    shard = VocabShard.of(len(case.lm_head), group, padded)
    batch, proposals, _ = case.hidden.shape
    rows = shard.rows(case.lm_head)
    run = TpRollout(
        case.weights, rows, case.embedding, mode, batch, shard, way, proposals=proposals
    )
    return run.run(case.hidden, case.current).clone()


def main(rank: int, store: str, out: str) -> None:
    """W2 in parts, on the recorded head and on one whose scores are all equal."""
    group = join(rank, store)
    weights, lm_head, embedding, hidden, current, _ = recorded_head()
    case = Case(
        weights=weights, lm_head=lm_head, embedding=embedding, hidden=hidden, current=current
    )
    alike = replace(case, weights=tied(weights), lm_head=torch.zeros_like(lm_head))
    found: dict[str, Tensor] = {}
    modes: tuple[Mode, ...] = (0, "certified")
    for mode in modes:
        found[f"uneven.{mode}"] = propose(case, group, None, mode, "sharded")
        found[f"padded.{mode}"] = propose(case, group, 160, mode, "sharded")
        found[f"tied.{mode}"] = propose(alike, group, None, mode, "sharded")
    save_file(found, f"{out}.{rank}")
