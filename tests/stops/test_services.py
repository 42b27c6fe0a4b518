"""Stop strings through real services, router process included, on the recorded tiny pair.

The tokenizer has one token per byte, so that characters and stop strings span tokens and steps.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from domino_client import Client, Completion, RequestArgs
from tests.chaos.tokenizer import save_tokenizer
from tests.recorded_models import BLOCK
from tests.router.router_process import running_router
from tests.services.served import Verify, serve_draft, serve_verify

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
PROMPT = [177, 112, 108, 141, 92]  # its continuation is often drafted right
COUNT = 60


ARGS: RequestArgs = {
    "token_ids": PROMPT,
    "max_tokens": COUNT,
    "ignore_eos": True,
    "temperature": 0.5,
    "seed": 4,
    "mode": "domino",
    "draft_tokens": BLOCK - 1,
}


@dataclass(frozen=True)
class Stack:
    client: Client
    verify: Verify


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = save_tokenizer(tmp_path_factory.mktemp("tokenizer"))
    with (
        serve_draft() as draft,
        serve_verify(prefill_tokens=16) as verify,
        running_router(folder, verify.address, "--draft", draft.address) as router,
        Client(router, timeout_s=60) as client,
    ):
        yield Stack(client, verify)


def ask(stack: Stack, *stop: str) -> tuple[Completion, list[tuple[int, ...]]]:
    """A sampled completion, whose bytes vary, and the ids of its chunks."""
    stream = stack.client.stream(**(ARGS | {"stop": stop}))
    chunks = [chunk.token_ids for chunk in stream]
    return stream.completion, chunks


def strings_of(text: str) -> Iterator[tuple[str, int]]:
    """Stretches of whole characters in the text, with their first place in it."""
    for size in (1, 2, 4):
        for start in range(len(text) - size):
            string = text[start : start + size]
            if REPLACEMENT not in string:
                yield string, text.index(string)


def test_every_end_agrees_with_itself_and_the_uncut_completion(stack: Stack) -> None:
    """A cut that takes text, ids, usage or statistics from another token than the rest."""
    whole, _ = ask(stack)
    assert whole.speculation.accepted_tokens > 0, "every step made one token: nothing tested"
    strings = list(strings_of(whole.text))
    assert len(strings) > 10, "too little text to cut"
    for string, start in strings[::5]:
        done, chunks = ask(stack, "<nowhere>", string)
        assert (done.finish_reason, done.stop) == ("stop", string)
        assert done.text == whole.text[:start]
        count = done.completion_tokens
        assert done.token_ids == whole.token_ids[:count]
        assert len(done.token_ids) == count == sum(map(len, chunks))
        stats = done.speculation
        assert (stats.mode, stats.width) == ("domino", BLOCK)
        assert (stats.step_tokens, stats.verify_steps) == (count - 1, len(chunks) - 1)
        assert stats.accepted_tokens == sum(stats.accepted_by_position)
        assert 0 < done.timings.first_token_ns <= done.timings.total_ns
    assert stack.verify.engine.idle.wait(30), "a request that was cut goes on"


def test_a_cut_request_leaves_the_others_alone(stack: Stack) -> None:
    """Ending a request between two steps must not disturb its batch mates or its draft's."""
    whole, _ = ask(stack)
    string, _ = next(iter(strings_of(whole.text)))
    streams = [stack.client.stream(**(ARGS | {"stop": [string] * (i % 2)})) for i in range(6)]
    for i, stream in enumerate(streams):
        for _ in stream:
            pass
        if i % 2:
            assert stream.completion.stop == string
        else:
            assert stream.completion.token_ids == whole.token_ids
    assert stack.verify.engine.idle.wait(30)
