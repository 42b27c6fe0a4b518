"""A pass that raises for one request: that one ends, whoever ran beside it notices nothing."""

import random
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from domino_cli.in_process import InProcess, collect
from domino_serve.v1 import speculation_pb2 as spec
from serving.errors import InternalError, PeerUnavailable
from tests.engines import engines
from tests.tiny_models import write_draft, write_target
from tests.verify.counting_engine import CountingEngine, counted, counting
from verify_service.sampling import SamplingParams
from verify_service.scheduler import Work
from verify_service.sequence import Chosen

POISON = 77
CLEAN = [[3, 9, 4, 100, 12], list(range(20, 60)), [5], list(range(90, 120)), [8, 9]]
SAMPLED = SamplingParams(temperature=0.8, seed=5)


def is_poisoned(item: Work) -> bool:
    return POISON in item.ids


def refuse(work: Sequence[Work], bad: Callable[[Work], bool] = is_poisoned) -> None:
    if any(map(bad, work)):
        raise RuntimeError("out of luck")


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_the_one_that_fails_ends_alone(count: int) -> None:
    """Prevents one bad request from ending all that share a step with it."""
    with counting(prefill_tokens=64) as running:
        running.executor.watch = refuse
        for place in range(count):
            firsts = [200 * (i + 1) for i in range(count)]
            firsts[place] = POISON - 6  # counts up to the poison
            answers = [running.submit([first], 20) for first in firsts]
            for first, answer in zip(firsts, answers, strict=True):
                if first < POISON:
                    with pytest.raises(InternalError, match="log has the details"):
                        answer.collect()
                else:
                    assert answer.collect()[0] == counted(first, 20)


def test_a_step_too_large_is_run_in_parts() -> None:
    """Prevents requests from ending where a pass has no memory for all of them at once."""

    def at_most_two(work: Sequence[Work]) -> None:
        if len(work) > 2:
            raise MemoryError

    with counting(prefill_tokens=64) as running:
        running.executor.watch = at_most_two
        answers = [running.submit([first], 9) for first in (10, 20, 30, 40, 50)]
        assert [a.collect()[0] for a in answers] == [counted(f, 9) for f in (10, 20, 30, 40, 50)]


def test_a_broken_executor_sends_its_requests_elsewhere() -> None:
    """INTERNAL would be final for each that is asked for, though nothing is wrong with it."""
    running = CountingEngine()

    def fail(work: Sequence[Work]) -> None:
        raise RuntimeError("the device is gone")

    running.executor.watch = fail
    running.engine.start()
    answers = [running.submit([first], 9) for first in (10, 20)]
    for answer in answers:
        with pytest.raises(PeerUnavailable, match="its engine cannot go on"):
            answer.collect()
    running.engine.stop()


def test_what_a_broken_pass_held_is_not_freed() -> None:
    """CUDA's destructors abort a process whose device is broken: it ends with -6, undrained."""
    running, held = CountingEngine(), list[weakref.ref[object]]()

    def fail(work: Sequence[Work]) -> None:
        buffer = Buffer()
        held.append(weakref.ref(buffer))
        raise RuntimeError("the device is gone")

    running.executor.watch = fail
    running.engine.start()
    for answer in [running.submit([first], 9) for first in (10, 20, 30)]:
        with pytest.raises(PeerUnavailable, match="its engine cannot go on"):
            answer.collect()
    running.engine.stop()
    assert len(held) > 2 and all(buffer() for buffer in held)


class Buffer:
    """In a pass' local variable, as pinned memory is."""


def test_ranks_are_not_asked_to_run_half_a_pass_again() -> None:
    """The others are in the midst of the pass, and would take the next for its rest."""
    running = CountingEngine()
    running.executor.can_run_anew = False
    passes: list[int] = []

    def count(work: Sequence[Work]) -> None:
        passes.append(len(work))
        refuse(work)

    running.executor.watch = count
    running.engine.start()
    with pytest.raises(PeerUnavailable):
        running.submit([POISON], 9).collect()
    running.engine.stop()
    assert passes == [1]


def test_a_request_whose_bookkeeping_fails_ends_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prevents a fault behind the pass, such as an id no message can hold, from ending others."""
    run = CountingEngine().executor.run

    def impossible(self: Any, work: Sequence[Work]) -> list[Chosen]:
        answers = run(work)
        return [
            Chosen(ids=[2**70] * item.choices) if POISON in item.ids else answer
            for item, answer in zip(work, answers, strict=True)
        ]

    with counting(prefill_tokens=64) as running:
        monkeypatch.setattr(type(running.executor), "run", impossible)
        failing, well = running.submit([POISON - 3], 20), running.submit([300], 20)
        with pytest.raises(InternalError):
            failing.collect()
        assert well.collect()[0] == counted(300, 20)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    target, draft = tmp_path_factory.mktemp("target"), tmp_path_factory.mktemp("draft")
    write_target("qwen3", target)
    write_draft(target, draft, block_size=4, domino=True, shift=True)
    return target, draft


@pytest.mark.parametrize("mode", [spec.MODE_AR, spec.MODE_DOMINO], ids=["ar", "domino"])
@pytest.mark.parametrize("sampling", [None, SAMPLED], ids=["greedy", "sampled"])
def test_neighbours_are_identical(
    models: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
    mode: spec.Mode.ValueType,
    sampling: SamplingParams | None,
) -> None:
    """Prevents a pass that is run in parts from changing a token of those that go on."""
    with engines(*models, page_size=16, kv_tokens=1024, prefill_tokens=16) as both:
        executor = both.engine._executor
        expected = [collect(start(both, p, mode, sampling))[0] for p in CLEAN]
        own, rng = executor.run, random.Random(1)

        def run(work: Sequence[Work]) -> list[Chosen]:
            # Its prompt passes well, then it fails wherever it runs; now and then a pass fails too.
            refuse(work, lambda w: w.sequence.prompt_len == 33 and not w.sequence.in_prefill)
            answers = own(work)
            if len(work) > 1 and rng.random() < 0.2:
                raise RuntimeError("out of memory")
            return answers

        monkeypatch.setattr(executor, "run", run)
        prompts = [*CLEAN[:3], list(range(60, 93)), *CLEAN[3:]]
        running = [start(both, prompt, mode, sampling) for prompt in prompts]
        with pytest.raises(InternalError):
            collect(running.pop(3))
        assert [collect(events)[0] for events in running] == expected
        assert both.engine.idle.wait(60)
        assert both.engine.scheduler.allocator.num_free == 1024 // 16


def start(
    both: InProcess, prompt: list[int], mode: spec.Mode.ValueType, sampling: SamplingParams | None
) -> Any:
    drafted = 3 if mode == spec.MODE_DOMINO else 0
    return both.submit(prompt, 24, mode=mode, draft_tokens=drafted, sampling=sampling)


def test_a_started_pass_may_fail_when_it_is_read(models: tuple[Path, Path]) -> None:
    """Of a device both the launch and the reading of its answer can raise."""
    with engines(models[0], None, kv_tokens=256) as both:
        executor = both.engine._executor

        def unreadable() -> list[Chosen]:
            raise RuntimeError("an illegal address")

        executor.start = lambda work: unreadable  # type: ignore[method-assign]
        ids = collect(start(both, CLEAN[0], spec.MODE_AR, None))[0]
    with engines(models[0], None, kv_tokens=256) as both:
        assert collect(start(both, CLEAN[0], spec.MODE_AR, None))[0] == ids
