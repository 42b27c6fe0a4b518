"""Proves the rollout over two GPUs (NCCL), then times it; writes a JSON file and prints a table.

Weights are generated (rollout_generator) at the 27B target's shapes; times are graph replays, the
slower rank's, median of 5 x 100, milliseconds. "base" is packing and this rank's part of the bf16
projection. A: whole logits gathered, mode 0. B: gathered, K = 2048. C: compact, K = 2048. exact and
certified: W2 in parts, one launch, keys written into the other rank's memory. launches: exact by
several launches and one NCCL maximum a step.
"""

import argparse
import datetime
import functools
import json
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import triton

from benchmarks.gpu_rollout import POOL, PROPOSALS, base_only, replay_ms
from benchmarks.gpu_verify_tree import add_argument, imported_tree
from benchmarks.rollout_checks import CheckFailed, same, small
from benchmarks.rollout_generator import QWEN36_27B, Generated, Shapes, generate
from domino_kernels.rollout import DominoRollout, Mode
from domino_kernels.rollout_shard import VocabShard
from domino_kernels.rollout_tp import TpRollout, Way

BATCHES, RANKS = (1, 8, 64), 2
WAYS: dict[str, tuple[Way, Mode, bool]] = {  # the last: as one launch
    "A": ("gather", 0, False),
    "B": ("gather", POOL, False),
    "C": ("compact", POOL, False),
    "exact": ("sharded", 0, True),
    "certified": ("sharded", "certified", True),
    "launches": ("sharded", 0, False),
}
GOALS = {("C", 1): 1.7, ("C", 8): 1.8, ("C", 64): 1.4, ("exact", 1): 2.2}
# seed 002, 2 x A100, milliseconds: base, A, B, C
A100 = {1: (0.795, 3.415, 2.342, 2.374), 8: (0.867, 5.0, 3.731, 2.808),
        64: (5.12, 21.761, 20.402, 8.163)}  # fmt: skip
COMMAND = "python -m benchmarks.gpu_rollout_tp --json FILE"


def rollout(head: Generated, shard: VocabShard, name: str, mode: Mode | None = None) -> TpRollout:
    """One way, for up to the largest batch."""
    way, own, resident = WAYS[name]
    return TpRollout(
        head.weights, shard.rows(head.lm_head), head.embedding, own if mode is None else mode,
        max(BATCHES), shard, way, proposals=PROPOSALS, resident=resident,
    )  # fmt: skip


def prove(shard_of: Any) -> list[str]:
    """A, exact and certified equal one rank's mode 0, B equals C, ranks agree; odd vocabulary."""
    lines, compared = [], 0
    for dtype in (torch.bfloat16, torch.float32):
        case = small(dtype, "cuda")
        shard = shard_of(len(case.lm_head))
        single = DominoRollout(case.weights, case.lm_head, case.embedding, 0, max(BATCHES))
        runs = {n: rollout(case, shard, n, None if n not in "BC" else 64) for n in WAYS}
        for batch in BATCHES:
            hidden, current = case.inputs(batch, PROPOSALS, batch)
            found = {n: run.run(hidden, current).clone() for n, run in runs.items()}
            wanted = single.run(hidden, current).clone()
            agree = float((found["A"] == wanted).double().mean())
            if agree < 0.99:  # a part of the head is another product: near-ties may round apart
                raise CheckFailed(f"A agrees with one rank on {agree}")
            same("exact", found["exact"], found["A"]) if dtype == torch.float32 else None
            same("certified", found["certified"], found["exact"])
            launches = float((found["launches"] == found["exact"]).double().mean())
            if launches < 0.99:  # sums in another order
                raise CheckFailed(f"one launch and several agree on {launches}")
            pools = float((found["B"] == found["C"]).double().mean())
            if pools < 0.99:
                raise CheckFailed(f"B and C agree on {pools}")
            compared += wanted.numel()
            for name, mine in found.items():
                theirs = shard.gathered(mine)
                same(f"{name} on both ranks", theirs[0], theirs[1])
            lines.append(
                f"{dtype} B{batch}: A {agree:.4f}, certified = exact, B = C on {pools:.4f}"
            )
    return [*lines, f"{compared} proposals compared a way"]


def time_rank(head: Generated, shard: VocabShard) -> list[dict[str, Any]]:
    """One row a batch, this rank's milliseconds."""
    rows: list[dict[str, Any]] = [{"batch": batch} for batch in BATCHES]
    local = head.__class__(
        weights=head.weights, lm_head=shard.rows(head.lm_head), embedding=head.embedding,
        common=head.common,
    )  # fmt: skip
    inputs = {batch: head.inputs(batch, PROPOSALS, batch) for batch in BATCHES}
    for row in rows:
        row["base"] = base_only(local, inputs[row["batch"]][0])
    for name in WAYS:
        run = rollout(head, shard, name)
        for row in rows:
            batch = row["batch"]
            dist.barrier()
            row[name] = replay_ms(functools.partial(run.run, *inputs[batch]))
        del run
        torch.cuda.empty_cache()
    return rows


def slowest(shard: VocabShard, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The larger of both ranks' times."""
    names = [(i, name) for i, row in enumerate(rows) for name in row if name != "batch"]
    times = torch.tensor([rows[i][name] for i, name in names], device="cuda")
    shard.maximum(times)
    for (i, name), value in zip(names, times.tolist(), strict=True):
        rows[i][name] = value
    return rows


def rank_main(
    rank: int, port: int, out: str, tiny: bool, unchecked: bool, known: Path | None
) -> None:
    """One rank: proves, times, and on rank 0 writes and prints."""
    torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=RANKS,
        device_id=torch.device("cuda", rank),
    )  # fmt: skip
    group = dist.group.WORLD
    assert group is not None
    with torch.inference_mode():
        proofs = [] if unchecked else prove(lambda vocab: VocabShard.of(vocab, group))
        if rank == 0:
            print("\n".join(proofs), flush=True)
        shapes = Shapes(vocab=5003, hidden=256) if tiny else QWEN36_27B
        head = generate(shapes, device="cuda")
        shard = VocabShard.of(shapes.vocab, group)
        rows = slowest(shard, time_rank(head, shard))
    if rank == 0:
        report(rows, proofs, out, imported_tree(known))
    dist.destroy_process_group()


def report(rows: list[dict[str, Any]], proofs: list[str], out: str, tree: dict[str, Any]) -> None:
    """Writes the JSON file and prints the table beside the seed's."""
    about: dict[str, Any] = {
        "hardware": f"{RANKS} x {torch.cuda.get_device_name()}",
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "versions": {"torch": torch.__version__, "triton": triton.__version__},
        "command": COMMAND,
    }
    found = []
    print(f"| B | base | {' | '.join(WAYS)} | C/base | exact/base | A100 base A B C |")
    print("|---" * (5 + len(WAYS)) + "|")
    for row in rows:
        row["best_exact"] = min(row[name] for name in ("exact", "certified", "launches"))
        times = [f"{row[n]:.3f}" for n in ("base", *WAYS)]
        ratios = {"C": row["C"] / row["base"], "exact": row["best_exact"] / row["base"]}
        published = " / ".join(map(str, A100[row["batch"]]))
        cells = [*times, f"{ratios['C']:.2f}", f"{ratios['exact']:.2f}", published]
        print(f"| {row['batch']} | {' | '.join(cells)} |")
        for kind, name in (("C", "compact"), ("exact", "exact")):
            if (goal := GOALS.get((kind, row["batch"]))) is not None:
                value = round(ratios[kind], 4)
                figure: dict[str, Any] = {"id": f"rollout_27b_tp2_{name}_over_base_b{row['batch']}"}
                figure |= {"value": value, "unit": "ratio", "goal": goal, "met": value <= goal}
                found.append(figure | {"lower_is_better": True} | about)
    for figure in found:
        print(figure["id"], figure["value"], "goal", figure["goal"], figure["met"])
    result = {"about": about, "tree": tree, "weights": "generated", "rows": rows}
    result |= {"figures": found}
    Path(out).write_text(json.dumps(result | {"proofs": proofs}, indent=1) + "\n")


def main() -> None:
    """Runs both ranks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--port", type=int, default=29571)
    parser.add_argument("--tiny", action="store_true", help="small shapes, to try the program")
    parser.add_argument("--skip-checks", action="store_true")
    add_argument(parser)
    options = parser.parse_args()
    arguments = options.port, str(options.json), options.tiny, options.skip_checks
    mp.spawn(rank_main, (*arguments, options.tree), nprocs=RANKS)  # type: ignore[attr-defined,no-untyped-call]


if __name__ == "__main__":
    main()
