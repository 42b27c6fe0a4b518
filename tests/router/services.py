"""Fixtures: one router per module, in front of a counting verify service and a draft with seats."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from domino_client import Client
from serving.errors import PeerUnavailable
from tests.router.fake_services import FakeDraft, FakeVerify, served
from tests.router.router_process import running_router
from tests.router.tiny_tokenizer import save_target

WAIT_S = 60.0


@dataclass(frozen=True)
class Services:
    address: str
    client: Client
    verify: FakeVerify
    draft: FakeDraft

    def await_abort(self, request_id: str) -> None:
        """Returns when the request was aborted; those that earlier tests left may be before it."""
        while self.verify.aborts.get(timeout=WAIT_S) != request_id:
            pass


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_target(tmp_path_factory.mktemp("targets") / "counter")


@pytest.fixture(scope="module")
def module_services(target: Path) -> Iterator[Services]:
    verify, draft = FakeVerify(), FakeDraft()
    with (
        served(verify) as verify_address,
        served(draft) as draft_address,
        running_router(
            target, verify_address, "--draft", draft_address, "--failover-s", "0"
        ) as address,
        Client(address, timeout_s=30) as client,
    ):
        yield Services(address, client, verify, draft)


@pytest.fixture
def services(module_services: Services) -> Services:
    """In front of a verify service that answers, with no requests recorded yet and seats free."""
    until_it_answers(module_services.client)
    module_services.draft.refusal = None
    for recorded in (
        module_services.verify.requests,
        module_services.verify.aborts,
        module_services.draft.reservations,
        module_services.draft.releases,
    ):
        while not recorded.empty():
            recorded.get()
    return module_services


def until_it_answers(client: Client) -> None:
    """A verify service that was lost is asked again at once, which takes a moment."""
    give_up = time.monotonic() + 30
    while True:
        try:
            client.generate(token_ids=[9], max_tokens=1, mode="ar")
            return
        except PeerUnavailable:
            if time.monotonic() > give_up:
                raise
            time.sleep(0.02)
