"""A GPU that fails for good ends its service, so that it is restarted; streams go on without."""

import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from domino_client import Client, RequestArgs
from tests.chaos.cluster import Cluster, Member, cluster
from tests.chaos.traffic import Case, ask, wave

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
pytestmark = [pytest.mark.gpu, on_gpu, pytest.mark.timeout(300)]
DEVICE: dict[str, Any] = {"device": "cuda", "page_size": 64}


@pytest.fixture(scope="module")
def services(tokenizer: Path) -> Iterator[Cluster]:
    draft = {**DEVICE, "max_sessions": 8}
    with cluster(tokenizer, draft=draft, max_sequences=4, max_waiting=4, **DEVICE) as running:
        yield running


@pytest.mark.parametrize("kind", ["drafts", "verifies"])
def test_it_ends(kind: str, services: Cluster, cases: Sequence[Case]) -> None:
    """Prevents a draft that answers handshakes for ever and drafts nothing, and a group that fails
    every request it is given."""
    victim: Member = getattr(services, kind)[0]
    victim.through = ("tests.chaos.breaking",)
    victim.restart()
    with Client(services.routers[0].address) as client:
        plain = [ask(client, Case(case.args | RequestArgs(mode="ar"), ())) for case in cases[:4]]
        known = [Case(c.args, tuple(p.ids)) for c, p in zip(cases, plain, strict=False)]
        answers, _ = wave(client, known, 3 * len(known), lambda: strike(victim))
    assert [answer.error for answer in answers] == [None] * len(answers)
    assert all(answer.is_identical for answer in answers)
    assert victim.await_end() == 1, victim.log[-20:]
    victim.through = ()
    victim.start()
    victim.await_ready()


def strike(victim: Member) -> float:
    victim.send(signal.SIGUSR1)
    return time.monotonic()
