"""All services replaced one after another under load, as an update does it: no request fails."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from domino_client import Client
from domino_serve.v1 import verify_pb2, verify_pb2_grpc
from serving.channel import channel
from serving.checkpoint import Checkpoint
from tests.chaos.cluster import CALL_S, Cluster, Member, until
from tests.chaos.traffic import Case, Traffic
from tests.recorded_models import DOMINO_SHIFT

CLIENTS = 4


class Balancer:
    """Gives a request to a router that says it is ready, as a load balancer does."""

    def __init__(self, routers: Sequence[Member]) -> None:
        self._clients = {router.address: Client(router.address) for router in routers}

    def pick(self) -> Client:
        addresses = list(self._clients)
        random.shuffle(addresses)
        ready = next(filter(is_ready, addresses), addresses[0])
        return self._clients[ready]

    def close(self) -> None:
        for client in self._clients.values():
            client.close()


def is_ready(address: str) -> bool:
    request = health_pb2.HealthCheckRequest(service="readiness")
    with channel(address) as calls:
        try:
            answer = health_pb2_grpc.HealthStub(calls).Check(request, timeout=5)
        except grpc.RpcError:
            return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def update_all(
    cluster: Cluster,
    cases: Sequence[Case],
    seed: int,
    *,
    clients: int = CLIENTS,
    of_each: int | None = None,
    draft: Path | None = None,
) -> dict[str, Any]:
    """Drafts, then verify groups, then routers; needs two of the last two kinds.

    of_each: how many of each kind are updated, all if None. draft: what the drafts are updated to,
    where there are two of them, their own weights otherwise.
    """
    if draft:
        replaced = Checkpoint(DOMINO_SHIFT).content_hash()
        for member in cluster.drafts:
            member.options |= {"draft": draft, "replaces": replaced}
    versions, used = 1, set[str]()
    balancer = Balancer(cluster.routers)
    kinds = (cluster.drafts, cluster.verifies, cluster.routers)
    members = [member for kind in kinds for member in kind[:of_each]]
    with Traffic(balancer.pick, cases, clients, seed) as traffic:
        for member in members:
            finished = len(traffic.answers)
            member.restart()
            # Everybody is used again before the next one goes.
            assert until(lambda: len(traffic.answers) >= finished + 2 * clients, 120.0)  # noqa: B023
            if draft and member is cluster.drafts[0]:
                assert until(lambda: _uses_all_drafts(cluster, used), 120.0), "one at a time"
                versions = 2
    balancer.close()
    failed = traffic.failed()
    return {
        "updated": [member.module for member in members],
        "draft_versions_at_once": versions,
        "requests": len(traffic.answers),
        "failed": len(failed),
        "errors": [str(answer.error) for answer in failed[:5]],
        "wrong": len(traffic.wrong()),
        "leaks": cluster.leaks(),
    }


def _uses_all_drafts(cluster: Cluster, used: set[str]) -> bool:
    """Whether a verify group has living links to all; `used`: drafts that were seen with sessions.

    A refused draft has a link too, which is not alive.
    """
    most = 0
    for member in cluster.verifies:
        with channel(member.address) as calls:
            stub = verify_pb2_grpc.VerifyServiceStub(calls)
            links = stub.GetLoads(verify_pb2.GetLoadsRequest(), timeout=CALL_S).draft_links
        most = max(most, sum(link.alive for link in links))
        used |= {link.address for link in links if link.alive and link.sessions}
    return most == len(used) == len(cluster.drafts)
