"""Output is the same whether the host's work overlaps the device's or not, and at any widths."""

from pathlib import Path
from typing import Any

import pytest
import torch

from domino_cli.in_process import InProcess, collect
from tests.engines import MODES, engines

GOLDEN = Path(__file__).parent.parent / "golden"
TARGET, DRAFT = GOLDEN / "target_qwen3_tiny", GOLDEN / "f2_domino_generate_shift"
CASES = [([3 + i, 60 + 7 * i, 9] * (1 + i % 4), 20 + 9 * i) for i in range(6)]
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def answers(running: InProcess) -> list[list[int]]:
    """Six requests at once, two of each mode."""
    events = [
        running.submit(
            prompt, count, mode=list(MODES.values())[i % 3], draft_tokens=(0, 7, 5)[i % 3]
        )
        for i, (prompt, count) in enumerate(CASES)
    ]
    return [collect(event)[0] for event in events]


def test_no_overlap_changes_no_token() -> None:
    """Tokens sent late that were taken for another step's: with --no-overlap none are. Those that
    wait for others of their request are sent all the same."""
    found = []
    for options in ({"overlap": True}, {"overlap": False}, {"stream_interval_s": 9}):
        with engines(TARGET, DRAFT, **options) as running:
            found.append(answers(running))
    assert found[0] == found[1] == found[2]


@pytest.mark.gpu
@needs_gpu
def test_steps_that_start_early_change_no_token() -> None:
    """An early step whose row is another sequence's, and widths that a policy changes on the way,
    plain steps of a resting draft among them."""
    with engines(TARGET, DRAFT) as on_cpu:
        expected = answers(on_cpu)
    for options in ({"overlap": True}, {"overlap": False}, {"width_policy": "auto"}):
        with engines(TARGET, DRAFT, device="cuda:0", max_sequences=6, **options) as on_gpu:
            assert answers(on_gpu) == expected, options


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("most", [6, 2])
def test_drafts_that_begin_behind_the_target_change_no_token(most: int) -> None:
    """Rows, tokens or proposals that go from kernel to kernel to the wrong place; with room for two
    requests, others come and go."""
    with engines(TARGET, DRAFT) as on_cpu:
        expected = drafted(on_cpu)
    for overlap in (True, False):
        gpu: dict[str, Any] = {"device": "cuda:0", "draft_device": "cuda:0", "overlap": overlap}
        on_gpu = engines(TARGET, DRAFT, max_sequences=most, **gpu)
        begun = counted(on_gpu)
        with on_gpu:
            assert drafted(on_gpu) == expected
        steps = on_gpu.engine.timeline.count
        assert not overlap or begun["begin"] > 0.8 * steps, "whoever joins drafts with the others"
        assert not overlap or (begun["start_ahead"] > 0.7 * steps and begun["tell"]), begun
        assert overlap or not begun


def drafted(running: InProcess) -> list[list[int]]:
    """All by Domino, which one step of the draft can do together."""
    events = [
        running.submit(prompt, count, mode=MODES["domino"], draft_tokens=3 + i)
        for i, (prompt, count) in enumerate(CASES)
    ]
    return [collect(event)[0] for event in events]


def counted(running: InProcess) -> dict[str, int]:
    """How often each of the three was called."""
    assert running._draft is not None
    counts: dict[str, int] = {}
    for owner, name in (
        (running._draft.engine._executor, "begin"),
        (running.engine._executor, "start_ahead"),
        (running.link, "tell"),
    ):
        own = getattr(owner, name)

        def call(*args: Any, own: Any = own, name: str = name) -> Any:
            counts[name] = counts.get(name, 0) + 1
            return own(*args)

        setattr(owner, name, call)
    return counts
