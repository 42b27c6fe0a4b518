"""Drafts that begin behind the target's step, on one device: the same tokens, and fewer waits."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from domino_cli.in_process import InProcess, collect
from domino_serve.v1 import speculation_pb2 as spec
from tests.engines import engines
from tests.standing_still import standing_still
from tests.verify.early import EarlyDraft, EarlyTarget, Waking

GOLDEN = Path(__file__).parent.parent / "golden"
TARGET, DRAFT = GOLDEN / "target_qwen3_tiny", GOLDEN / "f2_domino_generate_shift"
CASES = [([3 + i, 60 + 7 * i, 9] * (1 + i % 4), 20 + 9 * i) for i in range(6)]


@contextmanager
def early(**options: Any) -> Iterator[tuple[InProcess, EarlyTarget, EarlyDraft]]:
    """Engines whose draft begins early."""
    running = engines(TARGET, DRAFT, **options)
    target = EarlyTarget(running.engine._executor, 16)
    assert running._draft is not None
    draft = EarlyDraft(running._draft.engine._executor)
    running.engine._executor, running._draft.engine._executor = target, draft  # type: ignore[assignment]
    with running:
        yield running, target, draft


def answers(running: InProcess, mode: spec.Mode.ValueType) -> list[list[int]]:
    with standing_still(running.engine, after=0):
        events = [
            running.submit(p, n, mode=mode, draft_tokens=3 + i) for i, (p, n) in enumerate(CASES)
        ]
    return [collect(event)[0] for event in events]


@pytest.mark.parametrize("options", [{}, {"max_sequences": 2}, {"prefill_tokens": 4}])
def test_the_tokens_are_the_plain_ones(options: dict[str, int]) -> None:
    """Rows handed over for another prefix, or proposals taken for another step's."""
    with engines(TARGET, DRAFT) as plain:
        expected = answers(plain, spec.MODE_AR)
    with early(**options) as (running, target, draft):
        assert answers(running, spec.MODE_DOMINO) == expected
        steps = running.engine.timeline.count
        assert draft.steps > 0.9 * steps and draft.num_begun > 100
        assert target.num_ahead > 0.85 * steps, "those who join come in beside the others"
        assert running.engine.drafting.num_faults == 0


def test_a_draft_that_wakes_begins_behind_the_plain_step_that_runs_already() -> None:
    """That step was run for nothing, since proposals came for the one in its place: 5 ms at each
    look at a draft (Qwen3-8B's shapes, an H200)."""
    with engines(TARGET, DRAFT) as plain:
        expected = answers(plain, spec.MODE_AR)
    with early() as (running, target, draft):
        running.engine._widths = Waking(5)
        assert answers(running, spec.MODE_DOMINO) == expected
        steps = [step for step in running.engine.timeline.steps if not step.prompt_positions]
        drafted = sum(step.positions > step.sequences for step in steps)
        assert drafted > 20
        assert draft.steps >= drafted and target.num_ahead >= drafted - 2, "none waits for the host"
        assert running.engine.drafting.num_faults == 0


def test_what_began_for_something_else_is_not_taken() -> None:
    """Proposals, or a step that ran with them, of rows that the draft has not."""
    with engines(TARGET, DRAFT) as plain:
        expected = answers(plain, spec.MODE_AR)
    with early() as (running, target, draft):
        draft.spoilt = 2
        assert answers(running, spec.MODE_DOMINO) == expected
        assert draft.steps > 40 and 0 < target.num_ahead < draft.steps
        assert running.engine.drafting.num_faults == 0
