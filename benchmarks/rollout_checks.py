"""What must hold before a rollout is timed: every mode against float64, hard cases, mutations.

Each check raises CheckFailed; the mutations prove that the checks can fail.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from benchmarks.rollout_generator import Generated, Shapes, generate
from domino_kernels.rollout import DominoRollout, Mode
from domino_kernels.rollout_reference import rollout_reference
from domino_kernels.rollout_resident import LARGEST_BATCH

BATCHES = (1, 8, 11, 64, 128)
MODES: tuple[Mode, ...] = (0, "certified", 64)
# float64 agreement: the chosen token may lie this far under the best (states are rounded to dtype)
SHORTFALL = {torch.bfloat16: 0.05, torch.float16: 0.01, torch.float32: 1e-4}


class CheckFailed(Exception):
    """A rollout's answer is not the one it must give."""


def small(dtype: torch.dtype, device: str, *, vocab: int = 5003, flat: bool = False) -> Generated:
    """A head small enough for float64 checks; odd vocabulary."""
    shapes = Shapes(vocab=vocab, hidden=256, gru=256, bottleneck=128)
    return generate(shapes, dtype=dtype, device=device, flat=flat)


def rollout(
    case: Generated, mode: Mode, batch: int, *, table: bool = True, resident: bool = True
) -> DominoRollout:
    """A rollout of `case` for up to `batch` requests; resident: as one launch, where it can be."""
    return DominoRollout(
        case.weights, case.lm_head, case.embedding, mode, batch, input_table=table,
        resident=resident,
    )  # fmt: skip


def against_float64(case: Generated, ids: Tensor, hidden: Tensor, current: Tensor) -> float:
    """Share of ids [B, n] equal to float64's argmax on their own chain; raises where one is low."""
    trace = rollout_reference(
        case.weights, case.lm_head, case.embedding, hidden, current,
        accumulate=torch.float64, forced=ids,
    )  # fmt: skip
    short = trace.scores.amax(-1) - trace.scores.gather(-1, ids[..., None])[..., 0]
    agree = float((trace.ids == ids).double().mean())
    if float(short.max()) > SHORTFALL[case.lm_head.dtype] or agree < 0.99:
        raise CheckFailed(f"{case.lm_head.dtype}: short {float(short.max())}, agreement {agree}")
    return agree


def same(name: str, got: Tensor, wanted: Tensor) -> None:
    """Raises when two id tensors differ."""
    if not torch.equal(got, wanted):
        raise CheckFailed(f"{name}: {int((got != wanted).sum())} of {got.numel()} ids differ")


def modes(device: str, dtypes: tuple[torch.dtype, ...]) -> Iterator[str]:
    """Every mode, dtype and batch; yields one line a case."""
    for dtype, resident in ((dtype, resident) for dtype in dtypes for resident in (True, False)):
        case = small(dtype, device)
        runs: dict[Mode, DominoRollout] = {
            mode: rollout(case, mode, max(BATCHES), resident=resident) for mode in MODES
        }
        if resident and not runs[0].resident:
            continue
        without = rollout(case, 0, 1, table=False)
        for batch in BATCHES:
            hidden, current = case.inputs(batch, 15, batch)
            exact = runs[0].run(hidden, current).clone()
            agree = against_float64(case, exact, hidden, current)
            same("certified", runs["certified"].run(hidden, current), exact)
            pooled = rollout_reference(
                case.weights, case.lm_head, case.embedding, hidden, current, pool=64,
                accumulate=torch.float64,
            )  # fmt: skip
            pool = float((runs[64].run(hidden, current) == pooled.ids).double().mean())
            if pool < 0.97:
                raise CheckFailed(f"pool of 64: agreement {pool}")
            once = runs[0].resident is not None and batch <= LARGEST_BATCH
            kind = "one launch" if once else "several launches"
            if batch == 1 and not resident:
                same("without input table", without.run(hidden, current), exact)
            yield f"{dtype} B{batch}, {kind}: float64 {agree:.4f}, certified equal, pool {pool:.4f}"


def hard_cases(device: str, dtype: torch.dtype) -> Iterator[tuple[str, Generated]]:
    """Weights on which a bound that is too tight, or a tie rule, shows."""
    case = small(dtype, device)
    yield "flat spectrum", small(dtype, device, vocab=4099, flat=True)
    yield "huge W2", _with(case, w2=case.weights.w2 * 1e3)
    yield "tiny W2", _with(case, w2=case.weights.w2 * 1e-3)
    yield "huge base", dataclasses.replace(case, lm_head=case.lm_head * 1e3)
    pair = case.weights.w2.clone()
    pair[1::2] = pair[:-1:2]
    head = case.lm_head.clone()
    head[1::2] = head[:-1:2]
    yield "every token twice", dataclasses.replace(_with(case, w2=pair), lm_head=head)
    yield (
        "all scores equal",
        dataclasses.replace(_with(case, w2=torch.zeros_like(pair)), lm_head=torch.zeros_like(head)),
    )
    yield (
        "equal base, equal rows",
        dataclasses.replace(
            _with(case, w2=pair[:1].expand_as(pair).contiguous()), lm_head=torch.zeros_like(head)
        ),
    )
    yield "one row far out", _with(case, w2=torch.cat([pair[:-1], pair[-1:] * 100]))


def _with(case: Generated, **tensors: Tensor) -> Generated:
    return dataclasses.replace(case, weights=dataclasses.replace(case.weights, **tensors))


def adversarial(
    device: str, batches: tuple[int, ...] = (1, 8, 11), dtype: torch.dtype = torch.bfloat16,
    *, resident: bool = True,
) -> Iterator[str]:  # fmt: skip
    """certified equals mode 0 on every hard case; ties take the lowest id."""
    for name, case in hard_cases(device, dtype):
        made = [rollout(case, mode, max(batches), resident=resident) for mode in MODES[:2]]
        exact, certified = made
        for batch in batches:
            hidden, current = case.inputs(batch, 15, 7)
            ids = exact.run(hidden, current).clone()
            same(f"{name} B{batch}", certified.run(hidden, current), ids)
            if name == "every token twice" and bool((ids % 2 == 1).any()):
                raise CheckFailed("a tie did not take the lowest id")
            if name.startswith(("all", "equal")) and bool((ids != 0).any()):
                raise CheckFailed(f"{name}: ids are not all 0")
        kind = "one launch" if exact.resident else "several launches"
        yield f"{name}, {kind}: certified equals mode 0"


def graph_equals_eager(device: str) -> str:
    """A captured run replayed on new inputs gives the eager run's ids."""
    case = small(torch.bfloat16, device)
    for mode in MODES:
        for batch in BATCHES:
            run = rollout(case, mode, batch)
            hidden, current = case.inputs(batch, 15, 1)
            graph, ids = capture(functools.partial(run.run, hidden, current))
            for seed in (2, 3):
                new_hidden, new_current = case.inputs(batch, 15, seed)
                hidden.copy_(new_hidden)
                current.copy_(new_current)
                graph.replay()
                got = ids.clone()
                same(f"graph, mode {mode} B{batch}", got, run.run(hidden, current))
    return "graph replays equal eager runs, all modes and batches"


def capture(work: Callable[[], Tensor]) -> tuple[torch.cuda.CUDAGraph, Tensor]:
    """Warms `work` up on a side stream, then captures it; returns its static result."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())  # runs of one rollout share its buffers
    with torch.cuda.stream(stream):
        work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = work()
    return graph, result


def mutations(device: str, dtype: torch.dtype = torch.bfloat16) -> Iterator[str]:
    """Each broken rollout must fail the check that guards it."""
    case = small(dtype, device, vocab=50021, flat=True)
    hidden, current = case.inputs(8, 15, 1)
    exact = rollout(case, 0, 8).run(hidden, current).clone()

    def unsound() -> None:
        run = rollout(case, "certified", 8)
        _copy(run)[::2] = 0
        same("mutant", run.run(hidden, current), exact)

    def fewer_bits() -> None:
        run = rollout(case, "certified", 8)
        q = _copy(run)
        q.copy_((q >> 6) << 6)  # a coarser copy under the finer copy's slack
        same("mutant", run.run(hidden, current), exact)

    def gates_swapped() -> None:
        w_hh = case.weights.w_hh
        gru = case.weights.gru_dim
        swapped = torch.cat([w_hh[gru : 2 * gru], w_hh[:gru], w_hh[2 * gru :]])
        ids = rollout(_with(case, w_hh=swapped), 0, 8).run(hidden, current)
        against_float64(case, ids, hidden, current)

    def rows_shifted() -> None:
        ids = rollout(case, 0, 8).run(hidden.roll(1, dims=1), current)
        against_float64(case, ids, hidden, current)

    def second_best() -> None:
        ids = exact.clone()
        ids[3, 9] = (ids[3, 9] + 1) % len(case.lm_head)
        against_float64(case, ids, hidden, current)

    for mutant in (unsound, fewer_bits, gates_swapped, rows_shifted, second_best):
        try:
            mutant()
        except CheckFailed as failure:
            yield f"mutant {mutant.__name__} caught: {failure}"
        else:
            raise CheckFailed(f"mutant {mutant.__name__} passed")


def _copy(run: DominoRollout) -> Tensor:
    """The bytes of W2's copy, which the rollout reads."""
    if run.resident is not None:
        return run.resident.copy
    assert run.certified is not None
    return run.certified.rows.q
