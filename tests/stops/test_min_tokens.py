"""Ends at the engine: stop ids, min_tokens, caps, at every place of a verified block."""

from collections.abc import Iterator

import pytest

from domino_cli.in_process import InProcess, collect
from domino_serve.v1 import draft_pb2
from domino_serve.v1 import speculation_pb2 as spec
from tests.engines import OracleLink, engines
from tests.recorded_models import BLOCK, DOMINO_SHIFT, TARGET, VOCAB
from verify_service.sampling import SamplingParams
from verify_service.sequence import DraftPlan

PROMPT = [177, 112, 108, 141, 92]  # its continuation is often drafted right
COUNT = 40


@pytest.fixture(scope="module")
def pair() -> Iterator[InProcess]:
    with engines(TARGET, DOMINO_SHIFT, page_size=16) as running:
        yield running


def drafted(pair: InProcess, count: int, **more: object) -> tuple[list[int], int]:
    """Ids and finish reason of a Domino request."""
    events = pair.submit(
        PROMPT,
        count,
        mode=spec.MODE_DOMINO,
        draft_tokens=BLOCK,
        **more,  # type: ignore[arg-type]
    )
    ids, done = collect(events)
    assert done.usage.completion_tokens == len(ids)
    assert done.speculation.step_tokens == len(ids) - 1
    return ids, done.finish_reason


def plain(pair: InProcess, count: int, **more: object) -> list[int]:
    return collect(pair.submit(PROMPT, count, **more))[0]  # type: ignore[arg-type]


def test_the_first_of_stop_and_length_ends_at_every_offset(pair: InProcess) -> None:
    """A cap that hides an earlier stop, a stop found beyond the cap, tokens after either."""
    whole = plain(pair, COUNT)
    firsts = {token: place for place, token in reversed(list(enumerate(whole, start=1)))}
    for token, place in firsts.items():
        for cap in (place - 1, place, place + 1):
            if cap < 1:
                continue
            ids, reason = drafted(pair, cap, stop_ids=[token])
            assert ids == whole[: min(place, cap)]
            stopped = place <= cap
            assert reason == (spec.FINISH_REASON_STOP if stopped else spec.FINISH_REASON_LENGTH)


@pytest.mark.parametrize("sampling", [None, SamplingParams(temperature=0.8, seed=3)], ids=str)
def test_min_tokens_holds_at_every_verified_position(
    pair: InProcess, sampling: SamplingParams | None
) -> None:
    """A mask that covers a step's first row only lets accepted or bonus tokens stop too early."""
    whole = plain(pair, COUNT, sampling=sampling)
    stop_ids = sorted(set(whole[2:6]))
    for least in (1, 4, 5, 11, COUNT - 1, COUNT):
        options = {"stop_ids": stop_ids, "min_tokens": least, "sampling": sampling}
        expected = plain(pair, COUNT, **options)
        assert not set(expected[:least]) & set(stop_ids)
        assert len(expected) > least or least == COUNT
        assert drafted(pair, COUNT, **options)[0] == expected


def test_proposed_stop_ids_are_rejected_before_min_tokens(pair: InProcess) -> None:
    """A draft knows nothing of min_tokens; what it proposes must not get past the mask."""
    whole = plain(pair, COUNT)
    stop_ids = [whole[3]]
    expected = plain(pair, 12, stop_ids=stop_ids, min_tokens=8)
    assert expected[:3] == whole[:3] and expected[3] != whole[3]

    class Stubborn(OracleLink):
        """Goes on proposing the unmasked continuation."""

        def _propose(self, step: draft_pb2.SessionStep) -> list[int]:
            return whole[3 : 3 + step.draft_tokens]

    link = Stubborn({}, VOCAB, seed=1)
    plan = DraftPlan(link=link, ticket="", mode=spec.MODE_DOMINO, draft_tokens=3)
    events = pair.submit(PROMPT, 12, plan=plan, stop_ids=stop_ids, min_tokens=8)
    assert collect(events)[0] == expected
