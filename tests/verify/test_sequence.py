"""What a step keeps: stop ids and the cap in token order, statistics of the kept tokens alone."""

from itertools import takewhile

from hypothesis import given
from hypothesis import strategies as st

from domino_serve.v1 import speculation_pb2 as spec
from domino_serve.v1 import verify_pb2
from verify_service.sequence import Chosen, Event, Request, Sequence

PROMPT = [5, 6]


def decoding(max_tokens: int, stops: set[int], events: list[Event]) -> Sequence:
    """A sequence whose prompt has run and gave token 0."""
    sequence = Sequence(
        Request(
            request_id="r",
            prompt_ids=PROMPT,
            max_tokens=max_tokens,
            stop_ids=frozenset(stops),
            emit=events.append,
        )
    )
    assert not sequence.commit(PROMPT, Chosen(ids=[0]))
    sequence.send()
    return sequence


def step(
    choices: list[int], proposals: list[int], max_tokens: int, stops: set[int]
) -> tuple[list[int], spec.FinishReason.ValueType, Sequence]:
    """Tokens emitted by one verify step after token 0, why it ended there, and the sequence."""
    events: list[Event] = []
    sequence = decoding(max_tokens, stops, events)
    reason = sequence.commit([0, *proposals], Chosen(ids=choices))
    sequence.send()
    assert isinstance(events[-1], verify_pb2.VerifyChunk)
    assert len(events) == 2, "one chunk a step"
    return list(events[-1].token_ids), reason, sequence


def test_a_stop_id_inside_a_block_ends_it_there() -> None:
    """Tokens behind the stop would reach the client, and count."""
    kept, reason, sequence = step([1, 2, 3, 4], [1, 2, 3], 50, {2})
    assert (kept, reason) == ([1, 2], spec.FINISH_REASON_STOP)
    done = sequence.complete(reason)
    assert (done.stop_token_id, done.usage.completion_tokens) == (2, 3)
    assert done.usage.prompt_tokens == len(PROMPT)


def test_the_cap_inside_a_block_ends_it_there() -> None:
    """A completion longer than asked for."""
    kept, reason, sequence = step([1, 2, 3, 4], [1, 2, 3], 3, set())
    assert (kept, reason) == ([1, 2], spec.FINISH_REASON_LENGTH)
    assert not sequence.complete(reason).HasField("stop_token_id")


def test_cap_and_stop_in_one_block_the_first_wins() -> None:
    """With either order of checks one of the two reasons would be wrong."""
    assert step([1, 2, 3, 4], [1, 2, 3], 4, {2})[:2] == ([1, 2], spec.FINISH_REASON_STOP)
    assert step([1, 2, 3, 4], [1, 2, 3], 3, {3})[:2] == ([1, 2], spec.FINISH_REASON_LENGTH)
    at_once = step([1, 2, 3, 4], [1, 2, 3], 3, {2})
    assert at_once[:2] == ([1, 2], spec.FINISH_REASON_STOP)


def test_the_first_token_may_end_it() -> None:
    """The token that comes out of the prompt is checked like any other."""
    for max_tokens, stops, reason in (
        (1, set(), spec.FINISH_REASON_LENGTH),
        (9, {7}, spec.FINISH_REASON_STOP),
    ):
        request = Request(
            request_id="r",
            prompt_ids=PROMPT,
            max_tokens=max_tokens,
            stop_ids=frozenset(stops),
            emit=lambda event: None,
        )
        assert Sequence(request).commit(PROMPT, Chosen(ids=[7])) == reason


@given(
    choices=st.lists(st.integers(0, 5), min_size=1, max_size=8),
    accepted=st.integers(0, 7),
    max_tokens=st.integers(2, 10),
    stops=st.sets(st.integers(0, 5), max_size=2),
)
def test_any_step(choices: list[int], accepted: int, max_tokens: int, stops: set[int]) -> None:
    """Acceptance, stop and cap at every place; statistics count what was kept, bonus included."""
    accepted = min(accepted, len(choices) - 1)
    wrong = [token + 6 for token in choices[accepted:-1]]
    proposals = choices[:accepted] + wrong
    if 0 in stops:
        stops = stops - {0}  # token 0 came out of the prompt and would have ended it
    kept, reason, sequence = step(choices, proposals, max_tokens, stops)

    agreed = choices[: accepted + 1]
    before_stop = list(takewhile(lambda token: token not in stops, agreed))
    to_stop = agreed[: len(before_stop) + 1]
    expected = to_stop[: max_tokens - 1]
    assert kept == expected
    if len(before_stop) < len(agreed) and len(expected) == len(to_stop):
        assert reason == spec.FINISH_REASON_STOP
    elif len(expected) == max_tokens - 1:
        assert reason == spec.FINISH_REASON_LENGTH
    else:
        assert reason == spec.FINISH_REASON_UNSPECIFIED
        assert sequence.kv_len == len(sequence.tokens) - 1, "current has no KV yet"

    stats = sequence.stats
    assert (stats.verify_steps, stats.plain_steps) == (1, int(not proposals))
    assert (stats.proposed_tokens, stats.step_tokens) == (len(proposals), len(kept))
    assert stats.accepted_tokens == min(accepted, len(kept))
    taken = stats.accepted_tokens
    assert list(stats.accepted_by_position) == [int(j < taken) for j in range(len(proposals))]


def test_plain_steps_share_a_message_and_a_drafted_step_has_its_own() -> None:
    """Tokens that are lost, doubled or out of order when they wait; steps counted wrongly."""
    events: list[Event] = []
    sequence = decoding(50, set(), events)
    assert sequence.is_due(0) and sequence.is_due(10**12), "nothing waits"
    for token in (1, 2):
        sequence.commit([0], Chosen(ids=[token]))
        assert sequence.is_due(0) and not sequence.is_due(10**12)
    sequence.commit([2, 3], Chosen(ids=[3, 4]))
    assert sequence.is_due(10**12), "a drafted step's tokens do not wait"
    sequence.send()
    chunks = [event for event in events if isinstance(event, verify_pb2.VerifyChunk)]
    assert [list(chunk.token_ids) for chunk in chunks] == [[0], [1, 2], [3, 4]]
    assert [chunk.step.proposed_tokens for chunk in chunks] == [0, 0, 1]
    done = sequence.complete(spec.FINISH_REASON_LENGTH).speculation
    assert (done.verify_steps, done.plain_steps, done.step_tokens) == (3, 2, 4)
