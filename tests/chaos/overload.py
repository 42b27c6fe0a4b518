"""More requests than there is room for: the rest is refused at once, with a time to come back."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from domino_client import Client
from serving.errors import Overloaded
from tests.chaos.cluster import Cluster
from tests.chaos.traffic import Case, ask


def flood(cluster: Cluster, cases: Sequence[Case], count: int) -> dict[str, Any]:
    """`count` requests at once."""
    with Client(cluster.routers[0].address) as client, ThreadPoolExecutor(count) as pool:
        answers = list(pool.map(lambda i: ask(client, cases[i % len(cases)]), range(count)))
    refused = [answer for answer in answers if answer.error]
    return {
        "requests": count,
        "identical": sum(answer.is_identical for answer in answers),
        "refused": len(refused),
        "refused_otherwise": [
            str(answer.error)
            for answer in refused
            if not (isinstance(answer.error, Overloaded) and answer.error.retry_after_s)
        ],
        "leaks": cluster.leaks(),
    }
