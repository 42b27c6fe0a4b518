"""Who may reach whom: NetworkPolicies evaluated for every pair of pods, compared with intent."""

from typing import Any

import pytest
import yaml

from tests.deploy.manifests import DEPLOY, OVERLAYS, Manifest, Pod, of_kind, pods, selects

# Peers outside the namespace, by the labels of their namespaces.
OUTSIDE = {
    "client": {"domino-serve/client": "true"},
    "stranger": {"kubernetes.io/metadata.name": "elsewhere"},
    "prometheus": {"kubernetes.io/metadata.name": "monitoring"},
    "name server": {"kubernetes.io/metadata.name": "kube-system"},
}
GRPC = {"router": 50051, "draft": 50052, "verify": 50053}
METRICS = 9464
# From, to, port. What is not here must not be possible.
INTENDED = {
    ("client", "router", 50051),
    ("router", "draft", 50052),
    ("router", "verify", 50053),
    ("verify", "draft", 50052),
    *(("prometheus", name, METRICS) for name in GRPC),
}
PORTS = (*GRPC.values(), METRICS, 29500, 22)


def policies(overlay: str, pod: Pod, direction: str) -> list[Manifest]:
    """Those that select the pod and speak about this direction."""
    return [
        one["spec"]
        for one in of_kind(overlay, "NetworkPolicy")
        if direction in one["spec"]["policyTypes"]
        and selects(one["spec"]["podSelector"].get("matchLabels", {}), pod)
    ]


def allowed(overlay: str, pod: Pod, direction: str, peer: Pod | str, port: int) -> bool:
    """Whether any rule lets it: without a policy that selects the pod, everything goes."""
    found = policies(overlay, pod, direction)
    rules = [rule for spec in found for rule in spec.get(direction.lower(), ())]
    return not found or any(_rule_allows(rule, direction, peer, port) for rule in rules)


def _rule_allows(rule: Manifest, direction: str, peer: Pod | str, port: int) -> bool:
    peers = rule.get("from" if direction == "Ingress" else "to")
    ports = [one["port"] for one in rule.get("ports", ())]
    if ports and port not in ports:
        return False
    return peers is None or any(_is_peer(one, peer) for one in peers)


def _is_peer(selector: Manifest, peer: Pod | str) -> bool:
    assert len(selector) == 1, "both selectors in one peer mean their intersection"
    if isinstance(peer, str):
        labels = selector.get("namespaceSelector", {}).get("matchLabels")
        return labels is not None and labels.items() <= OUTSIDE[peer].items()
    return "podSelector" in selector and selects(selector["podSelector"]["matchLabels"], peer)


def reachable(overlay: str) -> set[tuple[str, str, int]]:
    inside = pods(overlay)
    found = set()
    for pod in inside:
        for port in PORTS:
            for name in OUTSIDE:
                if allowed(overlay, pod, "Ingress", name, port):
                    found.add((name, pod.name, port))
            for peer in inside:
                both = allowed(overlay, pod, "Ingress", peer, port)
                if both and allowed(overlay, peer, "Egress", pod, port):
                    found.add((peer.name, pod.name, port))
    return found


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_reachability_is_what_is_intended(overlay: str) -> None:
    """Prevents strangers at draft and verify, and policies that cut the services' own paths."""
    ranks = {("verify", "verify", port) for port in PORTS} if overlay == "multi-node" else set()
    assert reachable(overlay) == INTENDED | ranks


def test_pairs_reach_each_other_and_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prevents pairs of NCCL that no policy lets join, and ports that others get at beside them."""
    more = list(
        yaml.safe_load_all((DEPLOY / "kubernetes/components/nccl/network.yaml").read_text())
    )
    plain = of_kind
    monkeypatch.setitem(globals(), "of_kind", lambda *given: [*plain(*given), *more])
    both = (("verify", "draft"), ("draft", "verify"))
    pairs = {(one, other, port) for one, other in both for port in PORTS}
    assert reachable("single-node-gpu") == INTENDED | pairs


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_pod_is_behind_a_policy_in_both_directions(overlay: str) -> None:
    """Prevents a new workload that everybody reaches because no policy selects it."""
    for pod in pods(overlay):
        for direction in ("Ingress", "Egress"):
            assert policies(overlay, pod, direction), (pod.name, direction)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_only_names_and_the_api_server_lie_outside(overlay: str) -> None:
    """Prevents models' processes from sending anything out of the cluster."""
    for pod in pods(overlay):
        open_ports: set[Any] = {
            port for port in range(1, 10_000) if allowed(overlay, pod, "Egress", "stranger", port)
        }
        assert open_ports == ({443, 6443} if pod.name == "router" else set())
        assert allowed(overlay, pod, "Egress", "name server", 53)
