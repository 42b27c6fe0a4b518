"""Kind `tp_rollout`: the rollout over two gloo ranks, under Triton's interpreter (f4)."""

import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from domino_kernels.rollout_weights import DominoWeights
from tests.golden.fixture import TARGET, Fixture
from tests.kernels.interpreted import run_interpreted

HEAD = "f3_domino_rollout_shift"  # whose weights the recorded runs had
RANKS = """
import multiprocessing
from {module} import {main}

context = multiprocessing.get_context("fork")
ranks = [context.Process(target={main}, args=(rank, *{arguments!r})) for rank in range(2)]
for rank in ranks:
    rank.start()
for rank in ranks:
    rank.join()
assert [rank.exitcode for rank in ranks] == [0, 0]
"""


def run_ranks(module: str, main: str, *arguments: str) -> list[dict[str, Tensor]]:
    """What main(rank, store, out, *arguments) of each rank left in the file out.rank.

    store: a file that does not exist yet, for the ranks to meet.
    """
    with tempfile.TemporaryDirectory() as folder:
        files = str(Path(folder, "store")), str(Path(folder, "out"))
        run_interpreted(RANKS.format(module=module, main=main, arguments=(*files, *arguments)))
        return [load_file(f"{files[1]}.{rank}") for rank in range(2)]


def run_tp(fixture: Fixture) -> dict[str, Tensor]:
    """Proposals of every recorded case, the same on both ranks."""
    ranks = run_ranks("tests.golden.run_tp", "rank_main", str(fixture.path))
    assert all(torch.equal(ranks[0][name], ranks[1][name]) for name in ranks[0])
    return ranks[0]


def rank_main(rank: int, store: str, out: str, folder: str) -> None:
    """One rank's proposals of every case, by name, in the file out.rank."""
    # The kernels are for ranks: another process imports this module without Triton.
    from tests.kernels.tp_ranks import Case, join, propose

    group, inputs = join(rank, store), load_file(Path(folder, "inputs.safetensors"))
    weights, lm_head, embedding = recorded_tensors(Path(folder).parent)
    found: dict[str, Tensor] = {}
    known: dict[tuple[object, ...], Tensor] = {}
    for name, wanted in load_file(Path(folder, "expected.safetensors")).items():
        kind, padding, pool, path = name.split(".")
        mode = int(pool.removeprefix("pool")) % len(lm_head)
        padded = rows_a_rank(padding, len(lm_head))
        key = kind, padded, mode, path == "compact" and mode > 0
        if key not in known:
            case = Case(
                weights=weights,
                lm_head=inputs["tie_lm_head"] if kind == "tie" else lm_head,
                embedding=embedding,
                hidden=inputs["block_hidden"][:, : wanted.shape[1]],
                current=inputs["current"],
            )
            known[key] = propose(case, group, padded, mode, "compact" if key[3] else "gather")
        found[name] = known[key].clone()
    save_file(found, f"{out}.{rank}")


def recorded_tensors(folder: Path) -> tuple[DominoWeights, Tensor, Tensor]:
    """The recorded head, and its target's lm_head and embedding."""
    head, target = (load_file(folder / name / "model.safetensors") for name in (HEAD, TARGET))
    return _weights(head), target["lm_head.weight"], target["model.embed_tokens.weight"]


def _weights(head: Mapping[str, Tensor]) -> DominoWeights:
    return DominoWeights(
        w_ih=head["prefix_gru.weight_ih_l0"],
        w_hh=head["prefix_gru.weight_hh_l0"],
        w1=head["embed_proj.0.weight"],
        w2=head["embed_proj.2.weight"],
    )


def rows_a_rank(padding: str, vocab: int, ranks: int = 2) -> int:
    """`min`: as few as hold the vocabulary; `padN`: of the vocabulary rounded up to N."""
    step = re.fullmatch(r"pad(\d+)", padding)
    whole = vocab if step is None else -(-vocab // int(step[1])) * int(step[1])
    return -(-whole // ranks)
