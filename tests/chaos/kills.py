"""Services killed with -9 while streams run: every stream finishes, and finishes identical."""

import math
import random
import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from operator import gt
from typing import Any

from domino_client import Client, RequestArgs
from domino_serve.v1 import verify_pb2, verify_pb2_grpc
from serving.channel import channel
from serving.errors import PeerUnavailable
from tests.chaos.cluster import CALL_S, STEP_BUDGET_S, Cluster, Member, until
from tests.chaos.traffic import Answer, Case, ask, wave

WAVE = 16  # streams at once


@dataclass(slots=True)
class Kills:
    """Streams of all waves; hit: a token had come and more were due when the service died.

    longest_gap_s: between two chunks of a stream, within one step budget after its draft died.
    """

    streams: int = 0
    identical: int = 0
    hit: int = 0
    kills: int = 0
    longest_gap_s: float = 0.0
    errors: tuple[str, ...] = ()

    def add(self, answers: Sequence[Answer], moment: float) -> None:
        hit = [answer for answer in answers if answer.ran_at(moment)]
        self.streams += len(answers)
        self.identical += sum(answer.is_identical for answer in answers)
        self.hit += len(hit)
        self.kills += 1
        gaps = [answer.longest_gap(moment, moment + STEP_BUDGET_S) for answer in hit]
        self.longest_gap_s = round(max([self.longest_gap_s, *gaps]), 3)
        self.errors += tuple(str(answer.error) for answer in answers if answer.error)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def kill_drafts(cluster: Cluster, cases: Sequence[Case], streams: int, seed: int) -> Kills:
    """The only draft dies in each wave and is started again, which requests find by themselves."""
    return _kill(cluster, cluster.drafts, cases, streams, seed)


def kill_verifies(cluster: Cluster, cases: Sequence[Case], streams: int, seed: int) -> Kills:
    """One of the verify groups dies in each wave; its streams go on at another."""
    return _kill(cluster, cluster.verifies, cases, streams, seed)


def kill_rank(cluster: Cluster, cases: Sequence[Case], seed: int) -> dict[str, Any]:
    """One process of a tensor-parallel group dies: the group ends at once, its streams go on."""

    def lose() -> bool:
        cluster.followers[0].kill()
        return True

    return _lose_rank(cluster, cases, seed, lose)


def freeze_rank(cluster: Cluster, cases: Sequence[Case], seed: int) -> dict[str, Any]:
    """It stands still: the group ends by its limit of a step, and that rank once it goes on."""
    rank = cluster.followers[0]

    def lose() -> bool:
        rank.send(signal.SIGSTOP)
        if until(lambda: not _loads(cluster.verifies[0]).running, 1.0):
            rank.send(signal.SIGCONT)  # nothing needed it, or one last step had passed
            return False
        return True

    found = _lose_rank(cluster, cases, seed, lose)
    rank.send(signal.SIGCONT)
    return {**found, "exit_code_of_the_rank": rank.await_end()}


def _lose_rank(
    cluster: Cluster, cases: Sequence[Case], seed: int, lose: Callable[[], bool]
) -> dict[str, Any]:
    """lose: False where nothing ran there; another wave comes then."""
    rng, is_lost = random.Random(seed), False

    def strike() -> float:
        nonlocal is_lost
        moment = time.monotonic()
        is_lost = lose()
        return moment

    with Client(cluster.routers[0].address) as client:
        until_used(client, cluster, cases[0])
        while not is_lost:
            kills, chosen = Kills(), [rng.choice(cases) for _ in range(WAVE)]
            kills.add(*wave(client, chosen, 2 * WAVE, strike))
    return {**kills.as_json(), "exit_code_of_the_group": cluster.verifies[0].await_end()}


def freeze(cluster: Cluster, victim: Member, cases: Sequence[Case], seed: int) -> dict[str, Any]:
    """A service stands still until all streams have ended without it, then it goes on.

    stood_still: streams without a chunk for longer than any step takes.
    """
    rng, kills = random.Random(seed), Kills()

    def strike() -> float:
        moment = time.monotonic()
        victim.send(signal.SIGSTOP)
        return moment

    with Client(cluster.routers[0].address) as client:
        chosen = [rng.choice(cases) for _ in range(WAVE)]
        answers, moment = wave(client, chosen, 4 * WAVE, strike)
        kills.add(answers, moment)
        victim.send(signal.SIGCONT)
        until_used(client, cluster, cases[0])
    gaps = [answer.longest_gap(moment, math.inf) for answer in answers]
    still = sum(gap > STEP_BUDGET_S for gap in gaps)
    found = {**kills.as_json(), "longest_gap_s": round(max(gaps), 3), "stood_still": still}
    return {**found, "leaks": cluster.leaks()}


def _kill(
    cluster: Cluster, victims: Sequence[Member], cases: Sequence[Case], streams: int, seed: int
) -> Kills:
    rng, kills = random.Random(seed), Kills()
    with Client(cluster.routers[0].address) as client:
        while kills.streams < streams:
            victim = victims[kills.kills % len(victims)]
            chosen = [rng.choice(cases) for _ in range(min(WAVE, streams - kills.streams))]
            when = rng.randrange(len(chosen), 12 * len(chosen))
            kills.add(*wave(client, chosen, when, lambda: _strike(victim)))  # noqa: B023
            victim.await_ready()
            until_used(client, cluster, cases[0])
    return kills


def _strike(victim: Member) -> float:
    moment = time.monotonic()
    victim.kill()
    victim.start()
    return moment


def until_used(client: Client, cluster: Cluster, case: Case) -> None:
    """Returns when requests reach every group, and are drafted for, again."""
    groups = cluster.verifies

    def idle_checks(group: Member) -> int:
        """One more for each time that requests have come and gone."""
        return int(_loads(group).idle_checks)

    def all_used() -> bool:
        before = [idle_checks(group) for group in groups]
        with ThreadPoolExecutor(len(groups)) as pool:
            answers = list(pool.map(lambda _: ask(client, case), groups))
        drafted = all(a.completion and a.completion.speculation.proposed_tokens for a in answers)
        return drafted and until(lambda: all(map(gt, map(idle_checks, groups), before)), 1.0)

    assert until(all_used, 120.0), "a service that came back is not used"


def _loads(group: Member) -> verify_pb2.GetLoadsResponse:
    with channel(group.address) as calls:
        stub = verify_pb2_grpc.VerifyServiceStub(calls)
        return stub.GetLoads(verify_pb2.GetLoadsRequest(), timeout=CALL_S)


def kill_router(cluster: Cluster, cases: Sequence[Case]) -> dict[str, Any]:
    """Clients see UNAVAILABLE; a retry gives the same answer, and nothing stays behind."""
    router, case = cluster.routers[0], cases[0]
    named = Case(case.args | RequestArgs(request_id="again"), case.expected)
    with Client(router.address) as client:
        answers, _ = wave(client, [named, *cases[1:4]], 8, lambda: _strike(router))
    cut = [answer for answer in answers if answer.error]
    router.await_ready()
    with Client(router.address) as client:
        retried = [ask(client, answer.case) for answer in cut]
    return {
        "streams": len(answers),
        "cut_with_unavailable": sum(isinstance(a.error, PeerUnavailable) for a in cut),
        "wrong": sum(answer.is_wrong for answer in answers),
        "retried_identical": sum(answer.is_identical for answer in retried),
        "leaks": cluster.leaks(),
    }
