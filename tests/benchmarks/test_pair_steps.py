"""Times of steps in one process: the arithmetic, and every kind of load on tiny models."""

from pathlib import Path
from typing import Any

import pytest

import draft_service.load
import verify_service.load
from benchmarks.closed_loop import serve, served
from benchmarks.pair_steps import Load, Pair, times
from draft_service.config import DraftServiceConfig
from tests.benchmarks.serve_inputs import tiny_pair
from verify_service.config import VerifyConfig
from verify_service.timeline import Step

LOAD = Load(concurrency=2, prompt=4, new=8, width=4)
PAGES, PAGE = 64, 16


def step(began_ms: int, positions: int, tokens: int = 0, sequences: int = 2) -> Step:
    return Step(began_ns=began_ms * 10**6, sequences=sequences, positions=positions, tokens=tokens)


def test_only_steps_in_which_all_draft_are_timed() -> None:
    """Prompts, the last short blocks and steps of fewer requests would be called a cycle."""
    steps = [step(0, 4), step(1, 8, 6), step(11, 8, 4), step(31, 8, 9), step(99, 5), step(100, 8)]
    found = times(steps, LOAD)
    assert (found.steps, found.ms, found.tokens) == (2, 15.0, 2.5)
    assert found.tok_s == pytest.approx(10 / 0.030)
    assert times(steps, LOAD, any_width=True).steps == 5
    with pytest.raises(ValueError, match="take more new tokens"):
        times([step(0, 8, sequences=1)] * 3, LOAD)


def tiny(tmp_path: Path) -> Pair:
    target, draft = tiny_pair(tmp_path)
    options: dict[str, Any] = {"target": target, "draft": draft, "page_size": PAGE, "threads": 1}
    loaded = verify_service.load.load(VerifyConfig(**options, kv_tokens=PAGES * PAGE))
    drafter = draft_service.load.load(DraftServiceConfig(**options, kv_tokens=PAGES * PAGE))
    return Pair(
        loaded.engine._executor,
        drafter.engine._executor,
        vocab=loaded.info.target.vocab_size,
        pages=PAGES,
        page_size=PAGE,
        draft_pages=PAGES,
    )


def test_real_engines_give_the_acceptance_that_is_pretended(tmp_path: Path) -> None:
    """A cycle that accepts something else than its label says."""
    pair = tiny(tmp_path)
    for skip in (False, True):
        load = Load(concurrency=3, prompt=20, new=60, width=4, acceptance="2.0", skip_prompt=skip)
        found = pair.run(load)
        assert found.steps > 10 and found.tokens == pytest.approx(2.0)
        assert found.laps["wait"] > 0
    plain = pair.run(Load(concurrency=3, prompt=20, new=30))
    assert plain.tokens == 1.0 and plain.laps["wait"] < found.laps["wait"]


def test_steps_in_which_somebody_joins_are_told_apart(tmp_path: Path) -> None:
    """A served speed that leaves out prompts, or the time when clients have nothing left to ask."""
    prompts = [Step(began_ns=t * 10**6, prompt_positions=p, tokens=8) for t, p in
               [(0, 9), (1, 9), (5, 0), (8, 0), (9, 9), (99, 0)]]  # fmt: skip
    found = served(prompts, 10**6, 9 * 10**6)
    assert (found.steps, found.joins, found.join_ms, found.other_ms) == (3, 1 / 3, 4.0, 2.0)
    assert found.tok_s == pytest.approx(24 / 0.008)
    with pytest.raises(ValueError, match="ask for more"):
        served(prompts[:2], 0, 10**9)
    load = Load(concurrency=3, prompt=20, new=30, width=4, acceptance="2.0")
    real = serve(tiny(tmp_path), load, rounds=4)
    assert 0 < real.joins < 0.9 and real.steps > 20
