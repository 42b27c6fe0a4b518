"""Verify groups that go, refuse or differ: the client's stream goes on, each token once."""

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from domino_client import Chunk, Client
from domino_serve.v1 import verify_pb2
from serving.errors import Draining, Overloaded, PeerUnavailable
from tests.router.fake_services import HANG, MAX_CONTEXT, WORKERS, FakeDraft, FakeVerify, served
from tests.router.router_process import running_router
from tests.router.tiny_tokenizer import byte_level

MODEL = byte_level()
FULL = Overloaded("the queue is full")


class Groups:
    """A router in front of verify services that can be stopped one by one."""

    def __init__(self, stack: ExitStack, target: Path, *fakes: FakeVerify, flags: Any = ()) -> None:
        self.fakes = fakes
        self._servers = [ExitStack() for _ in fakes]
        addresses = [
            server.enter_context(served(fake))
            for server, fake in zip(self._servers, fakes, strict=True)
        ]
        for server in self._servers:
            stack.push(server)
        draft = stack.enter_context(served(FakeDraft()))
        flags = ("--draft", draft, *flags)
        router = running_router(target, ",".join(addresses), *flags)
        address = stack.enter_context(router)
        self.client = stack.enter_context(Client(address, timeout_s=60))
        self._begun: list[Iterator[Chunk]] = []

    def begin(self, count: int) -> None:
        """So many requests at once, which never end; each has its first token then."""
        streams = [self.client.stream(token_ids=[HANG]) for _ in range(count)]
        self._begun += map(iter, streams)
        for chunks in self._begun[-count:]:
            next(chunks)

    def begin_everywhere(self) -> list[int]:
        """Begins requests until each service has had as many: how many. The router is ready with
        the first service that answers."""
        self.begin(1)
        while len({*(counts := self.counts())}) > 1:
            assert max(counts) < WORKERS, "one service gets all requests"
            time.sleep(0.2)
            self.begin(1)
        return counts

    def counts(self) -> list[int]:
        """Requests that each service has had."""
        return [fake.requests.qsize() for fake in self.fakes]

    def stop_the_one_running(self) -> tuple[FakeVerify, verify_pb2.VerifyServiceGenerateRequest]:
        """Ends the service that has a request, as a crash does; gives the other one."""
        first, second = self.fakes
        index = int(first.requests.empty())
        request = self.fakes[index].requests.get(timeout=30)
        self._servers[index].close()
        return (second, first)[index], request


@contextmanager
def groups(target: Path, *fakes: FakeVerify, flags: Any = ()) -> Iterator[Groups]:
    with ExitStack() as stack:
        yield Groups(stack, target, *fakes, flags=flags)


def hanging() -> tuple[FakeVerify, FakeVerify]:
    return FakeVerify(hang_after=2), FakeVerify(hang_after=2)


def test_a_lost_group_is_followed_by_another_in_one_stream(target: Path) -> None:
    """Prevents tokens that come twice, are lost, or are counted wrongly when a group dies."""
    with groups(target, *hanging()) as running:
        stream = running.client.stream(
            token_ids=[99], max_tokens=9, min_tokens=6, temperature=1.0, mode="domino"
        )
        chunks = iter(stream)
        got = [next(chunks), next(chunks)]
        other, first = running.stop_the_one_running()
        other._hang_after = None
        got += chunks
        second = other.requests.get(timeout=30)
    assert [id_ for chunk in got for id_ in chunk.token_ids] == list(range(100, 109))
    assert "".join(chunk.text for chunk in got) == MODEL.decode(list(range(100, 109)))
    assert list(second.prompt_ids) == [99, 100, 101, 102, 103]
    assert (first.max_tokens, second.max_tokens) == (9, 5)
    assert (first.min_tokens, second.min_tokens) == (6, 2)
    assert first.sampling.HasField("seed")
    assert first.sampling == second.sampling, "another seed, or none, gives another completion"
    assert first.request_id != second.request_id
    done = stream.completion
    assert (done.prompt_tokens, done.completion_tokens, done.finish_reason) == (1, 9, "length")
    # Two steps before the loss, of three proposals and one accepted each; then what the fake says.
    assert (done.speculation.verify_steps, done.speculation.proposed_tokens) == (2 + 4, 6 + 20)
    assert done.speculation.accepted_by_position == (2 + 4, 2, 0)
    assert (done.speculation.step_tokens, done.speculation.mode) == (4 + 10, "domino")


def test_a_stop_string_across_the_cut(target: Path) -> None:
    """Prevents a stop string that is overlooked because two groups made its halves."""
    text = MODEL.decode(list(range(60, 80)))
    stop = MODEL.decode([63, 64])
    with groups(target, *hanging()) as running:
        stream = running.client.stream(token_ids=[59], max_tokens=20, stop=[stop])
        chunks = iter(stream)
        got = [next(chunks), next(chunks)]
        other, _ = running.stop_the_one_running()
        other._hang_after = None
        got += chunks
    done = stream.completion
    assert "".join(chunk.text for chunk in got) == done.text == text[: text.index(stop)]
    assert (done.finish_reason, done.stop, done.completion_tokens) == ("stop", stop, 5)
    assert done.token_ids == (60, 61, 62, 63, 64)
    # Two whole steps before the cut and one token of the first one after it.
    assert (done.speculation.verify_steps, done.speculation.step_tokens) == (3, 5)


@pytest.mark.parametrize(("stop_ids", "reason"), [([], "length"), ([103], "stop")])
def test_a_group_lost_between_the_last_token_and_the_last_word(
    target: Path, stop_ids: list[int], reason: str
) -> None:
    """Prevents a request for zero tokens, or for tokens behind the end."""
    fakes = [FakeVerify(silent_end=True), FakeVerify(silent_end=True)]
    with groups(target, *fakes) as running:
        done = running.client.generate(token_ids=[99], max_tokens=4, stop_token_ids=stop_ids)
    assert (done.token_ids, done.finish_reason) == ((100, 101, 102, 103), reason)
    assert done.stop_token_id == (103 if stop_ids else None)
    assert (done.completion_tokens, done.speculation.step_tokens) == (4, 4)


@pytest.mark.parametrize("refusal", [FULL, Draining(), PeerUnavailable("verify", "no engine")])
def test_a_group_that_refuses_is_passed_over(target: Path, refusal: Any) -> None:
    """Prevents refusing a client while another group has room."""
    with groups(target, FakeVerify(), FakeVerify()) as running:
        running.begin_everywhere()
        running.fakes[0].refusal = refusal
        for _ in range(4):
            done = running.client.generate(token_ids=[9], max_tokens=2)
            assert done.token_ids == (10, 11)


def test_all_groups_full_is_overload_with_a_time(target: Path) -> None:
    """Prevents clients that hammer a full service for want of a time to wait."""
    with groups(target, FakeVerify(), FakeVerify()) as running:
        before = running.begin_everywhere()
        for fake in running.fakes:
            fake.refusal = FULL
        with pytest.raises(Overloaded) as caught:
            running.client.generate(token_ids=[9], max_tokens=2)
        assert caught.value.retry_after_s == 1.0
        assert running.counts() == [count + 1 for count in before]


def test_a_stream_that_has_begun_waits_for_a_group(target: Path) -> None:
    """Prevents losing a stream whose only group is restarted or full for a moment."""
    with groups(target, FakeVerify(hang_after=2), FakeVerify()) as running:
        running.begin_everywhere()
        second = running.fakes[1]
        second.refusal = FULL
        stream = running.client.stream(token_ids=[99], max_tokens=8)
        chunks = iter(stream)
        got = [next(chunks), next(chunks)]
        while not second.requests.empty():
            second.requests.get()
        running._servers[0].close()
        while second.requests.get(timeout=30).prompt_ids[0] != 99:
            pass
        second.refusal = None
        got += chunks
    assert [id_ for chunk in got for id_ in chunk.token_ids] == list(range(100, 108))


def test_a_request_that_breaks_every_group_ends(target: Path) -> None:
    """Prevents one poisonous request from taking down group after group for ever."""
    broken = PeerUnavailable("verify", "the engine stopped")
    fakes = [FakeVerify(refusal=broken), FakeVerify(refusal=broken)]
    with groups(target, *fakes) as running:
        with pytest.raises(PeerUnavailable):
            running.client.generate(token_ids=[9], max_tokens=2)
        assert sum(fake.requests.qsize() for fake in fakes) <= 4


def test_requests_go_to_the_least_loaded_group(target: Path) -> None:
    """Prevents one group from queueing while another idles."""
    with groups(target, FakeVerify(), FakeVerify()) as running:
        before = running.begin_everywhere()
        running.begin(6)
        assert running.counts() == [count + 3 for count in before]


def test_a_group_with_another_model_is_not_used(target: Path) -> None:
    """Prevents an answer of two models, where both groups are the first to answer."""
    fakes = FakeVerify(), FakeVerify(content_hash="other")
    both = threading.Barrier(len(fakes), timeout=30)
    for fake in fakes:
        fake.meeting = both
    with groups(target, *fakes) as running:
        begun = [iter(running.client.stream(token_ids=[HANG])) for _ in range(4)]
        for chunks in begun:
            next(chunks)
        assert sorted(fake.requests.qsize() for fake in fakes) == [0, 4]


def test_abort_between_two_groups(target: Path) -> None:
    """Prevents an aborted request that comes to life again on another group."""
    with groups(target, FakeVerify(hang_after=2)) as running:
        stream = running.client.stream(token_ids=[99], max_tokens=9, request_id="mine")
        chunks = iter(stream)
        got = [next(chunks), next(chunks)]
        running._servers[0].close()
        assert running.client.abort("mine")
        assert [id_ for chunk in chunks for id_ in chunk.token_ids] == []
    assert stream.completion.finish_reason == "abort"
    assert stream.completion.completion_tokens == sum(len(chunk.token_ids) for chunk in got)


def test_a_context_filled_before_the_loss(target: Path) -> None:
    """Prevents a continuation that is refused because prompt and answer fill the context."""
    with groups(target, *hanging()) as running:
        stream = running.client.stream(token_ids=[99], max_tokens=MAX_CONTEXT)
        chunks = iter(stream)
        got = [next(chunks), next(chunks)]
        other, _ = running.stop_the_one_running()
        other._hang_after = None
        got += chunks
    assert sum(len(chunk.token_ids) for chunk in got) == MAX_CONTEXT - 1
