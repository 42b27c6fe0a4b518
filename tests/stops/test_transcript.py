"""Stop strings against a plain search over whole decodings, however ids are cut into steps."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from domino_serve.v1 import generate_pb2 as pb
from domino_serve.v1 import speculation_pb2 as spec
from domino_serve.v1 import verify_pb2
from router.admission import Work
from router.tokenizer import Tokenizer
from router.transcript import Transcript
from tests.router.tiny_tokenizer import byte_fallback, byte_level

KINDS = {"byte_level": byte_level(), "byte_fallback": byte_fallback()}
TOKENIZERS = {kind: Tokenizer(model, None) for kind, model in KINDS.items()}
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
STOP_ID = 0
End = tuple[str, int, str | None]


def work(stop: list[str], min_tokens: int = 0) -> Work:
    return Work(
        request_id="r",
        prompt_ids=[1, 2, 3],
        max_tokens=1000,
        min_tokens=min_tokens,
        stop_token_ids=frozenset([STOP_ID]),
        stop=tuple(stop),
        sampling=None,
        mode=spec.MODE_AR,
        draft_tokens=0,
    )


def chunk(ids: list[int]) -> verify_pb2.VerifyServiceGenerateResponse:
    step = spec.StepStats(proposed_tokens=len(ids), accepted_tokens=len(ids) - 1)
    return verify_pb2.VerifyServiceGenerateResponse(
        chunk=verify_pb2.VerifyChunk(token_ids=ids, step=step)
    )


def play(kind: str, steps: list[list[int]], job: Work) -> list[pb.GenerateResponse]:
    """The responses to a stream of chunks, which ends with verify's own complete."""
    transcript = Transcript(TOKENIZERS[kind], job)
    got: list[pb.GenerateResponse] = []
    for ids in steps:
        got += transcript.add(chunk(ids))
        if transcript.cut:
            return got
    usage = spec.Usage(prompt_tokens=3, completion_tokens=sum(map(len, steps)))
    end = verify_pb2.VerifyComplete(finish_reason=spec.FINISH_REASON_LENGTH, usage=usage)
    return got + transcript.add(verify_pb2.VerifyServiceGenerateResponse(complete=end))


def outcome(responses: list[pb.GenerateResponse]) -> End:
    """Text, token count and stop string; ids and usage have to agree."""
    chunks = [r.chunk for r in responses if r.HasField("chunk")]
    end = responses[-1].complete
    ids = [id_ for c in chunks for id_ in c.token_ids]
    assert end.usage.completion_tokens == len(ids)
    assert (end.finish_reason == spec.FINISH_REASON_STOP) == end.HasField("stop")
    text = "".join(c.text for c in chunks)
    return text, len(ids), end.stop if end.HasField("stop") else None


def oracle(kind: str, ids: list[int], stop: list[str], min_tokens: int) -> End:
    """The rule as it is written down, by searching every prefix's whole decoding."""

    def text(count: int) -> str:
        tokenizer = TOKENIZERS[kind]
        return tokenizer.decode(tokenizer.visible(i for i in ids[:count] if i != STOP_ID))

    ignored = len(text(min_tokens).rstrip(REPLACEMENT))
    for count in range(min_tokens + 1, len(ids) + 1):
        whole = text(count)
        found = [
            (start, order)
            for order, string in enumerate(stop)
            for start in range(len(whole))
            if whole.startswith(string, start) and start + len(string) > ignored
        ]
        if found:
            start, order = min(found)
            return whole[:start], count, stop[order]
    return text(len(ids)), len(ids), None


@st.composite
def cases(draw: st.DrawFn, kind: str) -> tuple[list[list[int]], list[str], int]:
    """Steps of real text with noise between, stop strings cut out of the text."""
    text = draw(st.text(alphabet="the quick é☂東🙂\u200d\n.", min_size=1, max_size=30))
    ids = list(KINDS[kind].encode(text).ids)
    for _ in range(draw(st.integers(0, 4))):
        noise = draw(st.integers(0, TOKENIZERS[kind].num_ids + 5))
        ids.insert(draw(st.integers(0, len(ids))), noise)
    stop = []
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(text) - 1))
        stop.append(text[start : start + draw(st.integers(1, 5))])
    cuts = sorted(draw(st.lists(st.integers(0, len(ids)), max_size=6)))
    bounds = [0, *cuts, len(ids)]
    steps = [ids[a:b] for a, b in pairwise(bounds) if a < b]
    return steps, stop, draw(st.sampled_from([0, 0, 1, 2, 5]))


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=600, deadline=None)
@given(data=st.data())
def test_text_ids_and_usage_end_at_the_same_token(kind: str, data: st.DataObject) -> None:
    """A stop string that is missed, found late or leaks a character; counts that say otherwise."""
    steps, stop, min_tokens = data.draw(cases(kind))
    ids = [id_ for step in steps for id_ in step]
    min_tokens = min(min_tokens, len(ids))
    got = outcome(play(kind, steps, work(stop, min_tokens)))
    assert got == oracle(kind, ids, stop, min_tokens)


def test_text_is_held_back_only_while_it_may_belong_to_a_stop_string() -> None:
    """Holding back too little leaks the stop string, too much delays the text."""
    ids = [KINDS["byte_level"].encode(character).ids for character in "a b c d e"]
    responses = play("byte_level", ids, work(["b d", " c e"]))
    pieces = [r.chunk.text for r in responses if r.HasField("chunk")]
    assert pieces == ["a", "", " ", "", "b", "", " c d", "", " e"]


def test_statistics_end_with_the_token_that_completes_the_string() -> None:
    """The step that is cut counts with the tokens that are kept; later ones do not count."""
    ids = KINDS["byte_level"].encode("quick").ids + KINDS["byte_level"].encode("xyz.ab").ids
    transcript = Transcript(TOKENIZERS["byte_level"], work(["z."]))
    before = spec.SpeculationStats(
        mode=spec.MODE_DOMINO, width=8, verify_steps=2, proposed_tokens=14, accepted_tokens=3,
        accepted_by_position=[2, 1, 0, 0, 0, 0, 0], step_tokens=5,
    )  # fmt: skip
    step = spec.StepStats(proposed_tokens=7, accepted_tokens=6)
    event = verify_pb2.VerifyChunk(token_ids=ids, step=step, speculation=before)
    event.timings.total_ns = 5
    *_, last = transcript.add(verify_pb2.VerifyServiceGenerateResponse(chunk=event))
    kept = len(ids) - 2
    stats = last.complete.speculation
    assert last.complete.usage.completion_tokens == kept
    assert (stats.verify_steps, stats.proposed_tokens, stats.step_tokens) == (3, 21, 5 + kept)
    assert stats.accepted_tokens == 3 + min(6, kept) == sum(stats.accepted_by_position)
    assert last.complete.timings.total_ns == 5
    assert last.complete.stop == "z."
