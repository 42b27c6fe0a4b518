"""Clients that leave at random moments, or whose deadline passes; neighbours notice nothing."""

import random
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from domino_client import Client, RequestArgs
from serving.errors import ServingError
from tests.chaos.cluster import Cluster
from tests.chaos.traffic import Case, Traffic, ask

CLIENTS = 12  # at once; more than a group runs, so that some wait in its queue
NEIGHBOURS = 2
WARM_UP = 12


def storm(cluster: Cluster, cases: Sequence[Case], count: int, seed: int) -> dict[str, Any]:
    """How many left in which phase, what is still held afterwards, and the neighbours' answers."""
    phases: dict[str, int] = {}
    lock = threading.Lock()

    def one(index: int) -> None:
        phase = leave(client, random.Random(seed + index), cases)
        with lock:
            phases[phase] = phases.get(phase, 0) + 1

    before = _usage(cluster, cases, seed)
    with (
        Client(cluster.routers[0].address) as client,
        Traffic(lambda: client, cases, NEIGHBOURS, seed) as neighbours,
        ThreadPoolExecutor(CLIENTS) as pool,
    ):
        list(pool.map(one, range(count)))
    leaks = cluster.leaks()
    after = _usage(cluster, cases, seed)
    return {
        "cancels": count,
        "phases": phases,
        "leaks": leaks,
        "neighbours": len(neighbours.answers),
        "neighbours_wrong": len(neighbours.wrong()) + len(neighbours.failed()),
        "more_files": {m: after[m]["files"] - before[m]["files"] for m in after},
        "more_threads": {m: after[m]["threads"] - before[m]["threads"] for m in after},
        "more_segments": {m: after[m]["segments"] - before[m]["segments"] for m in after},
    }


def _usage(cluster: Cluster, cases: Sequence[Case], seed: int) -> dict[str, dict[str, int]]:
    """Of every process, once some requests have made what is kept for later ones."""
    with (
        Client(cluster.routers[0].address) as client,
        ThreadPoolExecutor(WARM_UP) as pool,
    ):
        list(pool.map(lambda _: ask(client, cases[0]), range(WARM_UP)))
    assert not cluster.leaks()
    return {f"{i} {member.module}": member.usage() for i, member in enumerate(cluster.members())}


def leave(client: Client, rng: random.Random, cases: Sequence[Case]) -> str:
    """Begins a request and leaves it; the phase it was in."""
    case, manner = rng.choice(cases), rng.choice(("early", "early", "streaming", "deadline"))
    deadline = rng.uniform(0.001, 0.3) if manner == "deadline" else 60.0
    stream = client.stream(**(case.args | RequestArgs(timeout_s=deadline)))
    if manner == "early":  # queued, tokenized, waiting for a seat, or in the prompt's pass
        time.sleep(rng.uniform(0, 0.05))
        stream.cancel()
        return "before the first token"
    stop_at, chunks = rng.randrange(1, 40), 0
    try:
        for _ in stream:
            chunks += 1
            if manner == "streaming" and chunks == stop_at:
                stream.cancel()
                return "while streaming"
    except ServingError:
        return "deadline"
    return "finished first"
