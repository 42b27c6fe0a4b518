"""All services replaced one after another under load, as an update does it: no request fails."""

import random
from collections.abc import Sequence
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from domino_client import Client
from serving.channel import channel
from tests.chaos.cluster import Cluster, Member, until
from tests.chaos.traffic import Case, Traffic

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
) -> dict[str, Any]:
    """Drafts, then verify groups, then routers; needs two of the last two kinds.

    of_each: how many of each kind are updated, all if None.
    """
    balancer = Balancer(cluster.routers)
    kinds = (cluster.drafts, cluster.verifies, cluster.routers)
    members = [member for kind in kinds for member in kind[:of_each]]
    with Traffic(balancer.pick, cases, clients, seed) as traffic:
        for member in members:
            finished = len(traffic.answers)
            member.restart()
            # Everybody is used again before the next one goes.
            assert until(lambda: len(traffic.answers) >= finished + 2 * clients, 120.0)  # noqa: B023
    balancer.close()
    failed = traffic.failed()
    return {
        "updated": [member.module for member in members],
        "requests": len(traffic.answers),
        "failed": len(failed),
        "errors": [str(answer.error) for answer in failed[:5]],
        "wrong": len(traffic.wrong()),
        "leaks": cluster.leaks(),
    }
