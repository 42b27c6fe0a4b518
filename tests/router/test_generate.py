"""Requests through the real router process: what reaches verify, what comes back."""

import pytest

from domino_serve.v1 import speculation_pb2 as spec
from serving.errors import PeerUnavailable
from tests.router.fake_services import BREAK, EOS_ID, FULL, HANG, MAX_CONTEXT
from tests.router.services import Services
from tests.router.tiny_tokenizer import byte_level

MODEL = byte_level()


def test_text_comes_back_as_the_decoding_of_counted_ids(services: Services) -> None:
    """Prevents text that differs from the ids, and a prompt that verify sees otherwise."""
    stream = services.client.stream(token_ids=[7, 99], max_tokens=200)
    chunks = list(stream)
    counted = list(range(100, 100 + MAX_CONTEXT - 2))
    assert [id_ for chunk in chunks for id_ in chunk.token_ids] == counted
    assert "".join(chunk.text for chunk in chunks) == MODEL.decode(counted)
    assert stream.completion.text == MODEL.decode(counted)
    assert stream.completion.finish_reason == "length"
    request = services.verify.requests.get(timeout=60)
    assert list(request.prompt_ids) == [7, 99]
    assert request.max_tokens == MAX_CONTEXT - 2


def test_each_verify_step_is_one_chunk(services: Services) -> None:
    """Prevents a router that gathers tokens and so delays them."""
    chunks = list(services.client.stream(token_ids=[9], max_tokens=5))
    assert [chunk.token_ids for chunk in chunks] == [(10, 11), (12, 13), (14,)]


def test_text_and_chat_prompts_are_tokenized(services: Services) -> None:
    """Prevents prompts that skip the tokenizer or the template."""
    services.client.generate("the quick", max_tokens=1)
    services.client.generate(chat=[{"role": "user", "content": "fox"}], max_tokens=1)
    text, chat = (services.verify.requests.get(timeout=60) for _ in range(2))
    assert list(text.prompt_ids) == MODEL.encode("the quick").ids
    prompt = "<|im_start|>user\nfox<|im_end|>\n<|im_start|>assistant\n"
    assert list(chat.prompt_ids) == MODEL.encode(prompt).ids


def test_a_stop_id_ends_and_is_no_text(services: Services) -> None:
    """Prevents stop tokens on the screen, and counting them out of the ids."""
    done = services.client.generate(token_ids=[99], stop_token_ids=[103], max_tokens=9)
    assert done.finish_reason == "stop"
    assert done.stop_token_id == 103
    assert done.token_ids == (100, 101, 102, 103)
    assert done.text == MODEL.decode([100, 101, 102])
    assert (done.prompt_tokens, done.completion_tokens) == (1, 4)


def test_ignore_eos_leaves_only_the_requests_own_stop_ids(services: Services) -> None:
    """Prevents benchmarks of a fixed length from ending early, or never."""
    services.client.generate(token_ids=[99], stop_token_ids=[200], max_tokens=1)
    own = [200]
    services.client.generate(token_ids=[99], stop_token_ids=own, ignore_eos=True, max_tokens=1)
    with_eos, without = (services.verify.requests.get(timeout=60) for _ in range(2))
    assert list(with_eos.stop_token_ids) == [EOS_ID, 200]
    assert list(without.stop_token_ids) == own


def test_a_seat_travels_from_draft_to_verify(services: Services) -> None:
    """Prevents a request that runs plain although a seat was free."""
    done = services.client.generate(token_ids=[99], max_tokens=3, mode="dflash", draft_tokens=7)
    reserved = services.draft.reservations.get(timeout=60)
    assert (reserved.mode, reserved.max_positions) == (spec.MODE_DFLASH, 4)
    seat = services.verify.requests.get(timeout=60).draft
    assert (seat.ticket, seat.mode, seat.draft_tokens) == ("ticket", spec.MODE_DFLASH, 7)
    assert done.speculation.mode == "dflash"


def test_defaults_are_the_servers(services: Services) -> None:
    """Prevents the router from inventing a mode or width of its own."""
    services.client.generate(token_ids=[99])
    request = services.verify.requests.get(timeout=60)
    assert (request.draft.mode, request.draft.draft_tokens) == (spec.MODE_DOMINO, 5)


@pytest.mark.parametrize("plain", [{"mode": "ar"}, {"draft_tokens": 0}], ids=str)
def test_plain_requests_take_no_seat(services: Services, plain: dict[str, int]) -> None:
    """Prevents plain requests from using up the draft's seats."""
    done = services.client.generate(token_ids=[99], max_tokens=1, **plain)  # type: ignore[arg-type]
    assert services.draft.reservations.empty()
    assert not services.verify.requests.get(timeout=60).HasField("draft")
    assert done.speculation.mode == "ar"


def test_a_full_draft_costs_speed_only(services: Services) -> None:
    """Prevents refusing requests that the target alone can serve."""
    services.draft.refusal = FULL
    done = services.client.generate(token_ids=[99], max_tokens=3, mode="domino")
    assert done.token_ids == (100, 101, 102)
    assert done.speculation.mode == "ar"


def test_a_client_that_leaves_ends_the_request_on_verify(services: Services) -> None:
    """Prevents abandoned requests from holding the target until max_tokens."""
    for chunk in services.client.stream(token_ids=[HANG], max_tokens=9):
        assert chunk.token_ids == (HANG + 1,)
        break
    services.await_abort(services.verify.requests.get(timeout=60).request_id)


@pytest.mark.parametrize("end", ["refused", "left", "done"])
def test_a_seat_goes_back_however_the_request_ends(services: Services, end: str) -> None:
    """Seats of requests that verify refused would stay reserved until their tickets expire."""
    if end == "refused":
        with pytest.raises(PeerUnavailable):
            services.client.generate(token_ids=[BREAK], max_tokens=9)
    elif end == "left":
        for _ in services.client.stream(token_ids=[HANG], max_tokens=9):
            break
    else:
        services.client.generate(token_ids=[9], max_tokens=1)
    assert services.draft.releases.get(timeout=60) == "ticket"


def test_abort_completes_the_stream(services: Services) -> None:
    """Prevents Abort from looking like an error to whoever reads the stream."""
    stream = services.client.stream(token_ids=[HANG], max_tokens=9, request_id="mine")
    chunks = iter(stream)
    next(chunks)
    assert services.client.abort("mine")
    assert list(chunks) == []
    assert stream.completion.finish_reason == "abort"
    assert stream.completion.request_id == "mine"
    assert not services.client.abort("mine")


def test_a_failing_request_leaves_others_alone(services: Services) -> None:
    """Prevents one engine fault from ending every stream of the router."""
    other = iter(services.client.stream(token_ids=[HANG], max_tokens=9, request_id="other"))
    next(other)
    with pytest.raises(PeerUnavailable, match="the engine stopped"):
        services.client.generate(token_ids=[BREAK], max_tokens=9)
    assert services.client.abort("other")
    assert list(other) == []


def test_model_info_tells_limits_and_defaults(services: Services) -> None:
    """Prevents clients from guessing what the server can do."""
    info = services.client.model_info()
    assert (info.target, info.draft) == ("counter", "draft")
    assert (info.modes, info.default_mode) == (("ar", "dflash", "domino"), "domino")
    assert (info.max_draft_tokens, info.default_draft_tokens) == (7, 5)
    assert info.max_context == MAX_CONTEXT
    assert (info.dtype, info.target_hash, info.draft_hash) == ("float32", "abc", "def")
    assert (info.block_size, info.max_sequences, info.max_requests) == (8, 32, 256)
    assert (info.default_max_tokens, info.default_sampling) == (256, None)
    assert (info.max_stop_strings, info.max_stop_chars) == (16, 256)
    assert info.has_chat_template


def test_many_requests_at_once(services: Services) -> None:
    """Prevents answers that mix up concurrent requests."""
    streams = [services.client.stream(token_ids=[60 + i], max_tokens=20) for i in range(32)]
    for i, stream in enumerate(streams):
        ids = [id_ for chunk in stream for id_ in chunk.token_ids]
        assert ids == list(range(61 + i, 81 + i))
