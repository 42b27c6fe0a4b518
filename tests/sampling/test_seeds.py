"""A seeded completion is the same in every mode, width and batch, on a recorded tiny pair."""

from collections.abc import Iterator
from typing import Any

import pytest

from domino_cli.in_process import InProcess, collect
from tests.engines import MODES, engines
from tests.recorded_models import BLOCK, DOMINO_SHIFT, TARGET
from verify_service.sampling import SamplingParams

PROMPT = [177, 112, 108, 141, 92]  # its continuation is often drafted right
WARM = SamplingParams(temperature=0.7, top_k=40, top_p=0.95, min_p=0.01, seed=11)


@pytest.fixture(scope="module")
def pair() -> Iterator[InProcess]:
    with engines(TARGET, DOMINO_SHIFT, page_size=16, prefill_tokens=8) as running:
        yield running


def seeded(seed: int, temperature: float = 0.7) -> SamplingParams:
    return SamplingParams(temperature=temperature, seed=seed)


@pytest.mark.parametrize("mode", ["dflash", "domino"])
@pytest.mark.parametrize("params", [WARM, seeded(1)], ids=["warped", "plain"])
def test_every_mode_and_width_samples_the_same(
    pair: InProcess, mode: str, params: SamplingParams
) -> None:
    """A draw that depends on the step instead of the position changes with acceptance."""
    plain, _ = collect(pair.submit(PROMPT, 40, sampling=params))
    drafted = [
        collect(events)
        for events in [
            pair.submit(PROMPT, 40, sampling=params, mode=MODES[mode], draft_tokens=tokens)
            for tokens in range(1, BLOCK + 1)
        ]
    ]
    assert [ids for ids, _ in drafted] == [plain] * BLOCK
    assert all(done.speculation.accepted_tokens for _, done in drafted), "nothing tested"


def test_batch_mates_change_nothing(pair: InProcess) -> None:
    """Greedy and sampled requests of other modes, lengths and settings share the passes."""
    cases = [
        ([3 + i, 60 + 7 * i, 9] * (1 + i % 4), 12 + 5 * i, seeded(i, 0.4 + i) if i % 4 else None)
        for i in range(8)
    ]
    alone = [collect(pair.submit(p, n, sampling=s))[0] for p, n, s in cases]
    together = [
        pair.submit(
            p, n, sampling=s, mode=list(MODES.values())[i % 3], draft_tokens=(0, 7, 5)[i % 3]
        )
        for i, (p, n, s) in enumerate(cases)
    ]
    assert [collect(events)[0] for events in together] == alone


def test_preemption_changes_nothing() -> None:
    """A preempted request runs its positions anew, but draws nothing anew."""
    cases = [([3 + i, 60 + 7 * i, 9] * (1 + i), 40 + 5 * i, seeded(i)) for i in range(5)]
    options: dict[str, Any] = {"page_size": 8, "kv_tokens": 96, "prefill_tokens": 16}
    with engines(TARGET, DOMINO_SHIFT, **options) as running:
        alone = [collect(running.submit(p, n, sampling=s, min_tokens=n))[0] for p, n, s in cases]
        together = [
            running.submit(
                p, n, sampling=s, min_tokens=n, mode=MODES["domino"], draft_tokens=BLOCK - 1
            )
            for p, n, s in cases
        ]
        assert [collect(events)[0] for events in together] == alone
        assert running.engine.scheduler.num_preempted > 0, "nobody was preempted: nothing tested"


def test_a_retry_from_a_prefix_goes_on_alike(pair: InProcess) -> None:
    """A retry after a lost service must not fork the completion it continues."""
    whole, _ = collect(pair.submit(PROMPT, 30, sampling=WARM))
    rest, _ = collect(pair.submit(PROMPT + whole[:13], 17, sampling=WARM))
    assert rest == whole[13:]


def test_seeds_differ(pair: InProcess) -> None:
    """A seed that is ignored gives every user the same story."""
    stories = {tuple(collect(pair.submit(PROMPT, 24, sampling=seeded(s)))[0]) for s in range(8)}
    assert len(stories) == 8


def test_a_temperature_near_zero_is_greedy(pair: InProcess) -> None:
    """The limit of sampling is argmax; dividing by a tiny number must not overflow."""
    greedy, _ = collect(pair.submit(PROMPT, 32))
    for temperature in (1e-4, 1e-300):
        assert collect(pair.submit(PROMPT, 32, sampling=seeded(5, temperature)))[0] == greedy
