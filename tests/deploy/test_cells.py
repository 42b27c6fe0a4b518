"""The containers' own commands as processes: two cells, two routers, a fake Kubernetes API.

A cell is a zone with a verify service and a draft; both routers see both cells.
"""

import hashlib
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import pytest

from domino_client import Chunk, Client
from domino_serve.v1 import verify_pb2, verify_pb2_grpc
from serving.channel import channel
from serving.contract import ModeName
from tests.deploy.containers import Running, check_sums, write_models
from tests.deploy.manifests import OVERLAYS, pods
from tests.recorded_models import PROMPTS
from tests.router.fake_kubernetes import (
    FakeKubernetes,
    endpoint,
    endpoint_slice,
    fake_kubernetes,
    listing,
)

OVERLAY, ZONES, GRACE_S = "cpu-demo", ("a", "b"), 60.0
PROMPT, TOKENS, LONG = PROMPTS[1], 40, 300


@dataclass
class Cells:
    api: FakeKubernetes
    engines: dict[tuple[str, str], Running]
    addresses: dict[tuple[str, str], str]
    routers: list[Running]
    clients: list[Client]

    def tell(self, service: str, zone: str, **conditions: bool) -> None:
        """The API's word on one replica, to whoever watches."""
        self.api[service].emit("MODIFIED", self.slice(service, zone, **conditions))

    def slice(self, service: str, zone: str, **conditions: bool) -> dict[str, object]:
        host, _, port = self.addresses[service, zone].rpartition(":")
        place = endpoint(host, zone=zone, node=f"node-{zone}", **conditions)
        return endpoint_slice(f"{service}-{zone}", place, port=int(port))

    def drafts_of(self, zone: str) -> set[str]:
        """Addresses of those that draft for the zone's verify service now."""
        with channel(self.addresses["verify", zone]) as calls:
            stub = verify_pb2_grpc.VerifyServiceStub(calls)
            loads = stub.GetLoads(verify_pb2.GetLoadsRequest(), timeout=30)
        return {link.address for link in loads.draft_links if link.sessions}


@contextmanager
def running_cells(folder: Path) -> Iterator[Cells]:
    models = write_models(folder)
    by_name = {pod.name: pod for pod in pods(OVERLAY)}

    def start(name: str, of: str) -> Running:
        one = Running(OVERLAY, by_name[name], models, folder / f"{name}-{of}")
        stack.callback(one.process.stop, GRACE_S)
        return one

    with ExitStack() as stack:
        api, kubeconfig = stack.enter_context(fake_kubernetes(folder))
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setenv("KUBECONFIG", str(kubeconfig))
        patch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
        engines = {
            (name, zone): start(name, zone) for name in ("verify", "draft") for zone in ZONES
        }
        addresses = {key: one.address() for key, one in engines.items()}
        cells = Cells(api, engines, addresses, [], [])
        for name in ("verify", "draft"):
            api[name].answers = [listing(*(cells.slice(name, zone) for zone in ZONES))]
        cells.routers += [start("router", of) for of in ("1", "2")]
        for router in cells.routers:
            cells.clients.append(stack.enter_context(Client(router.address(), timeout_s=120)))
        yield cells


def begin(client: Client) -> tuple[Iterator[Chunk], list[int]]:
    """A long request that has been drafted for: the rest of its chunks, and its first ids."""
    chunks = iter(client.stream(token_ids=PROMPT, max_tokens=LONG, ignore_eos=True))
    return chunks, [id_ for chunk in islice(chunks, 3) for id_ in chunk.token_ids]


def begin_in_both(
    cells: Cells, own: dict[str, set[str]]
) -> list[tuple[Iterator[Chunk], list[int]]]:
    """As `begin`, one in each cell; again where one had ended before it was seen."""
    while True:
        running = [begin(cells.clients[0]) for _ in ZONES]
        found = {zone: cells.drafts_of(zone) for zone in ZONES}
        assert all(found[zone] <= own[zone] for zone in ZONES), found
        if found == own:
            return running
        for rest, _ in running:
            list(rest)


def ids(client: Client, mode: ModeName | None = None) -> tuple[int, ...]:
    done = client.generate(token_ids=PROMPT, max_tokens=TOKENS, ignore_eos=True, mode=mode)
    return tuple(done.token_ids)


def test_two_routers_over_two_cells(tmp_path: Path) -> None:
    """Prevents manifests whose commands do not run together, drafts of the other cell while the
    own one is there, and cells whose loss a client can see."""
    with running_cells(tmp_path) as cells:
        one, two = cells.clients
        plain = ids(one, "ar")
        assert len(plain) == TOKENS and ids(two) == plain

        # Two at once: a request each for the two cells, each with the draft of its own.
        own = {zone: {cells.addresses["draft", zone]} for zone in ZONES}
        running = begin_in_both(cells, own)

        # Cell a loses its verify service: the stream that ran there goes on in cell b.
        cells.engines["verify", "a"].process.kill()
        assert cells.engines["verify", "a"].exit_code() == -signal.SIGKILL
        got = [
            first + [id_ for chunk in rest for id_ in chunk.token_ids] for rest, first in running
        ]
        assert got[0] == got[1] and len(got[0]) == LONG and tuple(got[0][:TOKENS]) == plain
        cells.tell("verify", "a", ready=False)
        assert ids(two) == plain

        # Cell b's draft ends, still ready by its probe: requests take cell a's at once.
        cells.tell("draft", "b", ready=True, terminating=True)
        drafts: set[str] = set()
        while drafts != own["a"]:
            rest, _ = begin(two)
            drafts = cells.drafts_of("b")
            list(rest)

        # A router drains: what runs ends in order.
        with two.stream(token_ids=PROMPT, max_tokens=TOKENS, ignore_eos=True) as stream:
            rest = iter(stream)
            next(rest)
            os.kill(cells.routers[1].process.pid, signal.SIGTERM)
            list(rest)
            assert tuple(stream.completion.token_ids) == plain
        assert cells.routers[1].exit_code() == 0
        assert ids(one) == plain


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_models_that_differ_from_their_sums_stop_the_pod(overlay: str, tmp_path: Path) -> None:
    """Prevents a truncated copy, another checkpoint or an empty list from being served."""
    models = write_models(tmp_path / "models")
    files = sorted(file for file in models.rglob("*") if file.is_file())
    lines = [
        f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.relative_to(models)}\n"
        for file in files
    ]
    pod = next(pod for pod in pods(overlay) if pod.name == "verify")
    container = pod.spec["initContainers"][-1]
    if overlay == "cpu-demo":  # there the list comes with the models
        container = container | {"command": [*container["command"][:-1], "/etc/x/SHA256SUMS"]}
    assert check_sums(container, models, "".join(lines)).returncode == 0
    assert check_sums(container, models, "").returncode != 0
    weights = models / "draft" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    bad = check_sums(container, models, "".join(lines))
    assert bad.returncode != 0 and "draft/model.safetensors" in bad.stdout
