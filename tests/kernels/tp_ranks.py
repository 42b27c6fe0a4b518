"""The rollout over ranks on the recorded head: every way and padding, called in each rank."""

from dataclasses import replace

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import Tensor

from domino_kernels.rollout import Mode
from domino_kernels.rollout_shard import VocabShard
from domino_kernels.rollout_tp import TpRollout, Way
from tests.kernels.recorded_head import GOLDEN, recorded_head

PADDING = {"min": None, "pad64": 160}


def join(rank: int, store: str) -> dist.ProcessGroup:
    """One of two gloo ranks; store: a file that both can reach and that does not exist yet."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    group = dist.group.WORLD
    assert group is not None
    return group


def recorded_cases(group: dist.ProcessGroup) -> dict[str, Tensor]:
    """Proposals [3, 7] of every case of f4_tp_rollout by its name."""
    weights, lm_head, embedding, hidden, current, _ = recorded_head()
    folder = GOLDEN / "f4_tp_rollout"
    tied = load_file(folder / "inputs.safetensors")["tie_lm_head"]
    found = {}
    for name in load_file(folder / "expected.safetensors"):
        kind, padding, pool, path = name.split(".")
        mode, vocab = int(pool.removeprefix("pool")), len(lm_head)
        compact = path == "compact" and 0 < mode < vocab
        head = tied if kind == "tie" else lm_head
        shard = VocabShard.of(vocab, group, PADDING[padding])
        way: Way = "compact" if compact else "gather"
        run = TpRollout(weights, shard.rows(head), embedding, mode, 3, shard, way, proposals=7)
        found[name] = run.run(hidden, current).clone()
    return found


def sharded(group: dist.ProcessGroup, mode: Mode, padding: str, *, tied: bool) -> Tensor:
    """Proposals [3, 7] with W2 in parts; tied: all scores equal."""
    weights, lm_head, embedding, hidden, current, _ = recorded_head()
    shard = VocabShard.of(len(lm_head), group, PADDING[padding])
    if tied:
        weights = replace(weights, w2=weights.w2[:1].expand_as(weights.w2).contiguous())
        lm_head = torch.zeros_like(lm_head)
    rows = shard.rows(lm_head)
    run = TpRollout(weights, rows, embedding, mode, 3, shard, "sharded", proposals=7)
    return run.run(hidden, current).clone()


def main(rank: int, store: str, out: str) -> None:
    """One rank: writes every case's proposals by name."""
    group = join(rank, store)
    found = recorded_cases(group)
    modes: tuple[Mode, ...] = (0, "certified")
    for mode in modes:
        for padding in PADDING:
            found[f"sharded.{padding}.{mode}"] = sharded(group, mode, padding, tied=False)
        found[f"tied.{mode}"] = sharded(group, mode, "min", tied=True)
    save_file(found, f"{out}.{rank}")
    dist.destroy_process_group()
