"""Clients that leave and services that are killed, on GPUs: what rows travel in is given back too.

Half of the services are victims. Handles of all are to be what they were before, and the memory of
the others is not to grow from blow to blow.
"""

import itertools
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from threading import Event
from typing import Any, Final

import grpc

from domino_client import Client, RequestArgs
from domino_serve.v1 import draft_pb2, draft_pb2_grpc, verify_pb2, verify_pb2_grpc
from serving.channel import channel
from serving.errors import PeerUnavailable
from serving.transport.plane import NAMES
from tests.chaos import device_memory
from tests.chaos.cancels import leave
from tests.chaos.cluster import CALL_S, Cluster, Member, until
from tests.chaos.kills import until_used
from tests.chaos.traffic import Case, Traffic, ask

LEAVERS, NEIGHBOURS, AT_ONCE = 4, 3, 8
PAUSES_S: Final = (0.5, 2.5)  # between two blows
FROZEN_S: Final = 2.0  # longer than a step waits for a draft
MESH_S: Final = 60.0
Counts = dict[str, int]


def storm_of_kills(
    cluster: Cluster, cases: Sequence[Case], seconds: float, seed: int
) -> dict[str, Any]:
    """The first verify group and the first draft die or stand still again and again, beside others
    or alone; alone, requests may find no group for a while.

    cases: answered anew by plain decoding of these services, whose arithmetic is their device's.
    """
    rng, router = random.Random(seed), cluster.routers[0].address
    with Client(router) as client:
        cases = _plainly(client, cases)
        _mesh(client, cluster, cases)
        before = _usage(cluster)
        with Traffic(lambda: client, cases, NEIGHBOURS, seed) as traffic:
            blows, left, memory = _strike_all(client, cluster, cases, seconds, rng)
        leaks = cluster.leaks()
        until_used(client, cluster, cases[0])
        _mesh(client, cluster, cases)
        after = _usage(cluster)
    alone, failed = len(cluster.verifies) == 1, traffic.failed()
    away = [a for a in failed if alone and isinstance(a.error, PeerUnavailable)]
    return {
        "blows": blows,
        "left": left,
        "requests": len(traffic.answers),
        "wrong": len(traffic.wrong()),
        "found_no_group": len(away),
        "failed": len(failed) - len(away),
        "errors": sorted({str(answer.error)[:200] for answer in failed}),
        "leaks": leaks | cluster.leaks(),
        "planes": sorted({plane for member in cluster.verifies for plane in _planes(member)}),
        "early_steps": sum(map(_early_steps, cluster.drafts)),
        "before": before,
        "more": {m: {n: after[m][n] - before[m][n] for n in before[m]} for m in before},
        "memory_mib": memory,
    }


def _plainly(client: Client, cases: Sequence[Case]) -> list[Case]:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        plain = [Case(case.args | RequestArgs(mode="ar"), ()) for case in cases]
        answers = list(pool.map(lambda case: ask(client, case), plain))
    assert not any(answer.error for answer in answers), [answer.error for answer in answers]
    return [Case(c.args, tuple(a.ids)) for c, a in zip(cases, answers, strict=True)]


def _strike_all(
    client: Client, cluster: Cluster, cases: Sequence[Case], seconds: float, rng: random.Random
) -> tuple[Counts, Counts, dict[str, list[int]]]:
    """How often which victim was struck, in which phases clients left meanwhile, and the survivors'
    GPU memory after each blow."""
    survivors = [*cluster.drafts[1:], *cluster.verifies[1:]]
    memory: dict[str, list[int]] = {}
    draft, verify = cluster.drafts[0], cluster.verifies[0]
    blows: Iterator[tuple[str, Callable[[], None]]] = itertools.cycle(
        [
            ("draft killed", lambda: _restart([draft])),
            ("verify killed", lambda: _restart([verify])),
            ("draft frozen", lambda: _freeze(draft)),
            ("verify frozen", lambda: _freeze(verify)),
            ("both killed", lambda: _restart([verify, draft])),
        ]
    )
    struck: Counts = {}
    over, end = Event(), time.monotonic() + seconds
    with ThreadPoolExecutor(LEAVERS) as pool:
        leavers = [
            pool.submit(_leave_until, over, client, random.Random(rng.random()), cases)
            for _ in range(LEAVERS)
        ]
        try:
            while time.monotonic() < end:
                name, strike = next(blows)
                time.sleep(rng.uniform(*PAUSES_S))
                strike()
                struck[name] = struck.get(name, 0) + 1
                for member in survivors:
                    for kind, count in device_memory.usage(member).items():
                        if kind.endswith("mib"):
                            memory.setdefault(f"{member.module} {kind}", []).append(count)
                print(f"{name}, {end - time.monotonic():.0f} s left", flush=True)
        finally:
            over.set()
    left: Counts = {}
    for leaver in leavers:
        for phase, count in leaver.result().items():
            left[phase] = left.get(phase, 0) + count
    return struck, left, memory


def _restart(victims: Sequence[Member]) -> None:
    for victim in victims:
        victim.kill()
    for victim in victims:
        victim.start()
    for victim in victims:
        victim.await_ready()


def _freeze(victim: Member) -> None:
    victim.send(signal.SIGSTOP)
    time.sleep(FROZEN_S)
    victim.send(signal.SIGCONT)


def _leave_until(over: Event, client: Client, rng: random.Random, cases: Sequence[Case]) -> Counts:
    phases: Counts = {}
    while not over.is_set():
        phase = leave(client, rng, cases)
        phases[phase] = phases.get(phase, 0) + 1
    return phases


def _mesh(client: Client, cluster: Cluster, cases: Sequence[Case]) -> None:
    """Returns when every verify group has a stream to every draft, and nothing runs."""
    for group in cluster.verifies:
        for draft in cluster.drafts:
            assert until(partial(_connect, group, draft), MESH_S), f"no {draft.address}"
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(lambda case: ask(client, case), cases[:AT_ONCE]))
    assert not cluster.leaks()


def _connect(group: Member, draft: Member) -> bool:
    with channel(group.address) as calls, suppress(grpc.RpcError):
        request = verify_pb2.ConnectDraftRequest(address=draft.address)
        verify_pb2_grpc.VerifyServiceStub(calls).ConnectDraft(request, timeout=CALL_S)
        return True
    return False


def _planes(member: Member) -> list[str]:
    """How rows go to each draft that a group has a stream to."""
    with channel(member.address) as calls:
        stub = verify_pb2_grpc.VerifyServiceStub(calls)
        links = stub.GetLoads(verify_pb2.GetLoadsRequest(), timeout=CALL_S).draft_links
    return [NAMES[link.data_plane] for link in links if link.alive]


def _early_steps(draft: Member) -> int:
    """How many steps began before they were asked for, since it was started."""
    with channel(draft.address) as calls:
        request = draft_pb2.DraftServiceGetLoadsRequest()
        stub = draft_pb2_grpc.DraftServiceStub(calls)
        return int(stub.GetLoads(request, timeout=CALL_S).early_steps)


def _usage(cluster: Cluster) -> dict[str, Counts]:
    """Of each process by its place."""
    return {
        f"{i} {member.module}": member.usage() | device_memory.usage(member)
        for i, member in enumerate(cluster.members())
    }
