"""Peers that are absent, late, full or of another kind: what the router does at start and after."""

import json
import subprocess
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from domino_client import Client, Completion
from serving.errors import BadRequest, DraftUnavailable, Mismatch, Overloaded, PeerUnavailable
from serving.fingerprint import tokenizer_hash
from serving.unused_port import unused_port
from tests.router.fake_services import HANG, FakeDraft, FakeVerify, served
from tests.router.router_process import command, running_router

NOBODY = "127.0.0.1:1"


def refusal(*argv: str) -> tuple[int, str]:
    ended = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert ended.stdout == ""
    return ended.returncode, ended.stderr


def test_an_absent_draft_costs_speed_only(target: Path) -> None:
    """Prevents a router that cannot start or serve without its draft."""
    with (
        served(FakeVerify()) as verify,
        running_router(target, verify, "--draft", NOBODY) as address,
        Client(address, timeout_s=30) as client,
    ):
        done = client.generate(token_ids=[9], max_tokens=3, mode="domino")
        assert done.token_ids == (10, 11, 12)
        assert done.speculation.mode == "ar"


def test_a_draft_that_comes_later_is_used(target: Path) -> None:
    """Prevents a router that must be restarted after its draft was."""
    port = unused_port()
    draft = FakeDraft()
    with (
        served(FakeVerify()) as verify,
        running_router(target, verify, "--draft", f"127.0.0.1:{port}") as address,
        Client(address, timeout_s=30) as client,
    ):
        assert client.generate(token_ids=[9], max_tokens=1).speculation.mode == "ar"
        with served(draft, port):
            while draft.reservations.empty():  # gRPC reconnects within its backoff
                client.generate(token_ids=[9], max_tokens=1)
            assert client.generate(token_ids=[9], max_tokens=1).speculation.mode == "domino"


def test_without_a_draft_only_plain_is_served(target: Path) -> None:
    """Prevents promising modes that nobody can run."""
    with (
        served(FakeVerify()) as verify,
        running_router(target, verify) as address,
        Client(address, timeout_s=30) as client,
    ):
        info = client.model_info()
        assert (info.draft, info.modes, info.default_mode) == ("", ("ar",), "ar")
        assert (info.max_draft_tokens, info.default_draft_tokens) == (0, 0)
        assert client.generate(token_ids=[9], max_tokens=1).speculation.mode == "ar"


def test_a_verify_service_that_goes_is_unavailable_until_it_returns(target: Path) -> None:
    """Prevents hanging requests, a dead router, and one that needs a restart of its own."""
    port = unused_port()
    with ExitStack() as router:
        with served(FakeVerify(), port) as verify:
            flags = ("--failover-s", "0")
            address = router.enter_context(running_router(target, verify, *flags))
            client = router.enter_context(Client(address, timeout_s=30))
            stream = iter(client.stream(token_ids=[HANG]))
            next(stream)
        with pytest.raises(PeerUnavailable, match="verify"):
            next(stream)
        with pytest.raises(PeerUnavailable, match="verify"):
            client.generate(token_ids=[9], max_tokens=1)
        with served(FakeVerify(), port):
            assert until_reconnected(client).token_ids == (10,)


def until_reconnected(client: Client) -> Completion:
    while True:
        with suppress(PeerUnavailable):
            return client.generate(token_ids=[9], max_tokens=1)


def test_the_router_waits_for_verify_at_start(target: Path) -> None:
    """Prevents an order of starting that users must keep to, and waiting without a word."""
    verify = f"127.0.0.1:{unused_port()}"
    router = subprocess.Popen(
        command(target, verify), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with router:
        assert router.stdout and router.stderr
        assert f"waiting for the verify service at {verify}" in router.stderr.readline()
        with served(FakeVerify(), int(verify.rpartition(":")[2])):
            address = json.loads(router.stdout.readline())["address"]
            with Client(address, timeout_s=30) as client:
                assert client.generate(token_ids=[9], max_tokens=1).token_ids == (10,)
        router.terminate()


def test_a_verify_service_that_never_comes_is_one_message(target: Path) -> None:
    """Prevents a start that waits for ever without a word."""
    code, message = refusal(*command(target, NOBODY, "--startup-timeout-s", "0.2"))
    assert code == 1
    last = message.splitlines()[-1]
    assert f"verify service at {NOBODY} did not answer within 0.2 s" in last


def test_a_mode_without_its_model_is_refused_at_start(target: Path) -> None:
    """Prevents a default mode that every request would fail in."""
    with served(FakeVerify(has_draft=False)) as verify:
        flags = ("--mode", "domino", "--draft", NOBODY)
        code, message = refusal(*command(target, verify, *flags))
    assert code == 1
    assert "mode domino: the loaded models can run ar only" in message
    code, message = refusal(*command(target, NOBODY, "--mode", "domino"))
    assert code == 2
    assert "option mode: 'domino' needs a draft service" in message


def test_a_tokenizer_of_another_model_is_refused_at_start(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prevents prompts whose ids mean something else to the target, or nothing."""
    monkeypatch.setattr("tests.router.fake_services.VOCAB_SIZE", 100)
    with served(FakeVerify()) as verify:
        code, message = refusal(*command(target, verify))
    assert code == 1
    assert "tokenizer" in message
    assert "expected at most 100 ids, as counter has" in message


def test_another_tokenizer_of_the_same_size_is_refused_at_start(target: Path) -> None:
    """Prevents valid ids that mean other words to the target: answers without sense or error."""
    with served(FakeVerify(tokenizer_hash="of another")) as verify:
        code, message = refusal(*command(target, verify))
    assert code == 1
    assert "expected of another, got" in message
    assert "give the verify service's --target" in message
    with (
        served(FakeVerify(tokenizer_hash=tokenizer_hash(target))) as verify,
        running_router(target, verify) as address,
        Client(address, timeout_s=30) as client,
    ):
        assert client.generate(token_ids=[9], max_tokens=1).token_ids == (10,)


@pytest.mark.parametrize(("width", "most"), [(5, 7), (8, 7), (9, 8)])
def test_a_whole_block_of_proposals_is_a_setting(target: Path, width: int, most: int) -> None:
    """Prevents "b8+1" that is cut to 7 proposals without a word, and 8 where nobody asked."""
    with (
        served(FakeVerify(default_draft_tokens=width - 1)) as verify,
        served(FakeDraft()) as draft,
        running_router(target, verify, "--draft", draft) as address,
        Client(address, timeout_s=30) as client,
    ):
        info = client.model_info()
        assert (info.max_draft_tokens, info.default_draft_tokens) == (most, width - 1)
        assert client.generate(token_ids=[9], max_tokens=1).speculation.width == width
        done = client.generate(token_ids=[9], max_tokens=1, draft_tokens=most)
        assert done.speculation.width == most + 1
        with pytest.raises(BadRequest, match=rf"draft_tokens: {most + 1}; must be in 0\.\.{most}"):
            client.generate(token_ids=[9], draft_tokens=most + 1)


def test_more_requests_than_allowed_are_refused_at_once(target: Path) -> None:
    """Prevents memory that grows with every client that comes."""
    with (
        served(FakeVerify()) as verify,
        running_router(target, verify, "--max-requests", "1") as address,
        Client(address, timeout_s=30) as client,
    ):
        first = iter(client.stream(token_ids=[HANG]))
        next(first)
        with pytest.raises(Overloaded, match="1 requests are running") as caught:
            client.generate(token_ids=[9])
        assert caught.value.retry_after_s == 1.0


def test_a_draft_of_another_model_is_refused_at_start(target: Path) -> None:
    """Prevents a router that is ready and drafts for nobody; one that is only away may come."""
    other = Mismatch("draft.content_hash", "abc", "def", "start both with the same --draft")
    fake = FakeVerify()
    fake.draft_refusal = other
    with served(fake) as verify:
        code, message = refusal(*command(target, verify, "--draft", NOBODY))
        assert code == 1
        assert str(other) in message.splitlines()[-1]
        fake.draft_refusal = DraftUnavailable("draft", "is away")
        with running_router(target, verify, "--draft", NOBODY):
            assert fake.connects.get(timeout=30) == NOBODY
