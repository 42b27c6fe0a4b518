"""Everything that can go wrong, at random, for a while: no wrong token, no lost stream, no growth.

Half of the services are victims; the others live through all of it and tell whether memory grows.
"""

import itertools
import random
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from domino_client import Client
from domino_serve.v1 import draft_pb2, draft_pb2_grpc
from serving.channel import channel
from tests.chaos.cancels import leave
from tests.chaos.cluster import CALL_S, Cluster, Member
from tests.chaos.traffic import Case, Traffic

CLIENTS = 6
FROZEN_S = 25.0  # longer than two pings: the router gives the group up, which then comes back
SAMPLE_S = 5.0
TOLD_S = 60.0  # between two lines about how it goes
LEAVERS = 12
GROWTH = 1.05  # of resident memory from the second third to the last, beside ALLOWED_KIB
ALLOWED_KIB = 8192
COUNTED = ("files", "threads", "segments")


class Monkey:
    """What it does, one thing after another; `counts` tells how often."""

    def __init__(
        self, cluster: Cluster, cases: Sequence[Case], seed: int, weights: Sequence[Path]
    ) -> None:
        self._cluster, self._cases, self._rng = cluster, cases, random.Random(seed)
        self._draft, self._verify = cluster.drafts[0], cluster.verifies[0]
        self._weights = itertools.cycle(weights)
        self.counts: dict[str, int] = {}

    def act(self) -> None:
        acts: dict[str, Callable[[], None]] = {
            "draft killed": lambda: self._kill(self._draft),
            "verify killed": lambda: self._kill(self._verify),
            "draft hung": lambda: self._hang(self._draft),
            "verify hung": lambda: self._hang(self._verify),
            "verify frozen": lambda: self._hang(self._verify, FROZEN_S),
            "draft updated": self._draft.restart,
            "draft's weights updated": self._update,
            "verify updated": self._verify.restart,
            "clients left": self._leave,
        }
        name = self._rng.choice(list(acts))
        acts[name]()
        self.counts[name] = self.counts.get(name, 0) + 1
        time.sleep(self._rng.uniform(0.5, 2.0))

    def _kill(self, member: Member) -> None:
        member.kill()
        time.sleep(self._rng.uniform(0, 2))
        member.start()
        member.await_ready()

    def _hang(self, member: Member, seconds: float | None = None) -> None:
        member.send(signal.SIGSTOP)
        time.sleep(seconds or self._rng.uniform(0.1, 4))
        member.send(signal.SIGCONT)

    def _update(self) -> None:
        """The other draft keeps its own: verify services serve both versions."""
        request = draft_pb2.UpdateDraftWeightsRequest(folder=str(next(self._weights)))
        with channel(self._draft.address) as calls:
            draft_pb2_grpc.DraftServiceStub(calls).UpdateDraftWeights(request, timeout=CALL_S)

    def _leave(self) -> None:
        with Client(self._cluster.routers[0].address) as client:
            for _ in range(LEAVERS):
                leave(client, self._rng, self._cases)


class Memory:
    """Samples of the survivors; a context manager."""

    def __init__(self, members: Sequence[Member]) -> None:
        self._members, self._stop = members, threading.Event()
        self._before = [member.usage() for member in members]
        self.samples: list[list[int]] = [[] for _ in members]
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Memory":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def as_json(self) -> list[dict[str, Any]]:
        """more_files, more_threads: than before, to be asked for once nothing is held."""
        return [
            {
                "service": member.module,
                "rss_kib": samples,
                "is_flat": is_flat(samples),
                **{f"more_{name}": member.usage()[name] - old[name] for name in COUNTED},
            }
            for member, samples, old in zip(self._members, self.samples, self._before, strict=True)
        ]

    def _run(self) -> None:
        while not self._stop.wait(SAMPLE_S):
            for member, samples in zip(self._members, self.samples, strict=True):
                samples.append(member.usage()["rss_kib"])


def is_flat(samples: Sequence[int]) -> bool:
    """Whether the last third's mean is no more than a little above the second's."""
    third = len(samples) // 3
    if not third:
        return True
    middle, last = samples[third : 2 * third], samples[-third:]
    return sum(last) / third <= GROWTH * sum(middle) / third + ALLOWED_KIB


def soak(
    cluster: Cluster,
    cases: Sequence[Case],
    seconds: float,
    seed: int,
    weights: Sequence[Path],
    stop: threading.Event | None = None,
) -> dict[str, Any]:
    """Needs two verify groups and two drafts; weights: that one of the drafts is updated to.

    stop: ends it early, with what was found until then.
    """
    stop, told_at = stop or threading.Event(), 0.0
    monkey, began = Monkey(cluster, cases, seed, weights), time.monotonic()
    survivors = [cluster.drafts[1], cluster.verifies[1], cluster.routers[0]]
    with (
        Client(cluster.routers[0].address) as client,
        Memory(survivors) as memory,
        Traffic(lambda: client, cases, CLIENTS, seed) as traffic,
    ):
        while (elapsed := time.monotonic() - began) < seconds and not stop.is_set():
            if elapsed >= told_at:
                told_at = elapsed + TOLD_S
                print(f"{elapsed:.0f} s: {_so_far(traffic, monkey)}", flush=True)
            monkey.act()
    leaks, failed = cluster.leaks(), traffic.failed()
    tokens = sum(len(answer.ids) for answer in traffic.answers)
    return {
        "seconds": round(time.monotonic() - began),
        "requests": len(traffic.answers),
        "tokens": tokens,
        "wrong": len(traffic.wrong()),
        "failed": len(failed),
        "errors": sorted({str(answer.error)[:200] for answer in failed}),
        "events": monkey.counts,
        "memory": memory.as_json(),
        "leaks": leaks,
    }


def _so_far(traffic: Traffic, monkey: Monkey) -> str:
    wrong, failed = len(traffic.wrong()), len(traffic.failed())
    events = sum(monkey.counts.values())
    return f"{len(traffic.answers)} answers, {wrong} wrong, {failed} failed, {events} events"
