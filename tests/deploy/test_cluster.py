"""How the manifests of an overlay refer to each other: Services, scalers, budgets, discovery."""

import re
from pathlib import Path
from typing import Any

import pytest

import draft_service.metrics
import router.metrics
import verify_service.metrics
from router.discovery import discovery
from router.discovery_kubernetes import KubernetesService
from serving.metrics import INSTRUMENTS
from tests.deploy.manifests import (
    DEPLOY,
    OVERLAYS,
    Manifest,
    Pod,
    config,
    manifests,
    of_kind,
    pods,
    selects,
)

DECLARED = (router.metrics, verify_service.metrics, draft_service.metrics)
every_overlay = pytest.mark.parametrize("overlay", OVERLAYS)
with_operators = pytest.mark.parametrize("overlay", OVERLAYS[1:])


def named(overlay: str, kind: str, name: str) -> Manifest:
    (found,) = (one for one in of_kind(overlay, kind) if one["metadata"]["name"] == name)
    return found


def pod_of(overlay: str, name: str) -> Pod:
    """The service's pod that listens."""
    (found,) = (pod for pod in pods(overlay) if pod.name == name and pod.listens)
    return found


@every_overlay
def test_services_lead_to_ports_of_pods_that_listen(overlay: str) -> None:
    """Prevents a Service without endpoints, or with endpoints that are no servers."""
    for service in of_kind(overlay, "Service"):
        name, spec = service["metadata"]["name"], service["spec"]
        chosen = [pod for pod in pods(overlay) if selects(spec["selector"], pod)]
        assert [pod.name for pod in chosen] == [name] and chosen[0].listens
        (port,) = spec["ports"]
        numbers = {p["name"]: p["containerPort"] for p in chosen[0].container["ports"]}
        assert numbers[port["targetPort"]] == port["port"]
        assert (spec.get("clusterIP") == "None") == (name != "router")


@every_overlay
def test_the_router_discovers_services_that_exist_and_may_do_so(
    overlay: str, tmp_path: Path
) -> None:
    """Prevents a router that waits for a Service or a port nobody defined, or is forbidden to."""
    found = config(overlay, pod_of(overlay, "router"), tmp_path)
    for option, text in (("verify", found.verify), ("draft", found.draft)):
        assert isinstance(discovery(option, text), KubernetesService)
        _, name, port = text.split(":")
        service = named(overlay, "Service", name)
        assert name == option and service["spec"]["ports"][0]["name"] == port
    role = named(overlay, "Role", "watch-endpoints")
    assert role["rules"] == [
        {
            "apiGroups": ["discovery.k8s.io"],
            "resources": ["endpointslices"],
            "verbs": ["list", "watch"],
        }
    ]
    binding = named(overlay, "RoleBinding", "router-watches-endpoints")
    account = pod_of(overlay, "router").spec["serviceAccountName"]
    assert binding["roleRef"]["name"] == "watch-endpoints"
    assert [subject["name"] for subject in binding["subjects"]] == [account]
    assert named(overlay, "ServiceAccount", account)


@every_overlay
def test_selectors_select(overlay: str) -> None:
    """Prevents budgets, policies, monitors and controllers of pods that do not exist."""
    for manifest in manifests(overlay):
        spec: Any = manifest.get("spec", {})
        selector = spec.get("selector") or spec.get("podSelector")
        if manifest["kind"] == "Service" or not selector:
            continue
        labels = selector["matchLabels"]
        assert any(selects(labels, pod) for pod in pods(overlay)), manifest["metadata"]


@every_overlay
def test_budgets_protect_without_blocking(overlay: str) -> None:
    """Prevents node drains that take every replica, and ones that never end."""
    assert named(overlay, "PodDisruptionBudget", "router")["spec"]["minAvailable"] == 1
    for name in ("draft", "verify"):
        assert named(overlay, "PodDisruptionBudget", name)["spec"]["maxUnavailable"] == 1


@every_overlay
def test_a_scaler_owns_the_number_of_replicas(overlay: str) -> None:
    """Prevents each `apply` from undoing what an autoscaler has decided."""
    scalers = of_kind(overlay, "HorizontalPodAutoscaler", "ScaledObject")
    targets = {(s["spec"]["scaleTargetRef"][k]) for s in scalers for k in ("name",)}
    for pod in pods(overlay):
        owned = pod.owner["metadata"]["name"] in targets
        assert ("replicas" in pod.owner["spec"]) is not owned, pod.owner["metadata"]["name"]


@every_overlay
def test_scalers_scale_what_exists(overlay: str) -> None:
    """Prevents a scaler of a workload that an overlay has replaced."""
    for scaler in of_kind(overlay, "HorizontalPodAutoscaler", "ScaledObject"):
        target = scaler["spec"]["scaleTargetRef"]
        found = named(overlay, target["kind"], target["name"])
        assert found["apiVersion"] == target["apiVersion"]


@with_operators
def test_scalers_ask_for_metrics_that_the_services_have(overlay: str) -> None:
    """Prevents a scaler that sees zero for ever because a metric was renamed."""
    scalers = of_kind(overlay, "ScaledObject")
    assert {scaler["metadata"]["name"] for scaler in scalers} == {"verify", "draft"}
    for scaler in scalers:
        queries = [trigger["metadata"]["query"] for trigger in scaler["spec"]["triggers"]]
        names = [name for query in queries for name in re.findall(r"domino_\w+", query)]
        assert len(names) == len(queries) == 2, "a queue and KV use"
        for name in names:
            assert name in INSTRUMENTS and name.startswith(f"domino_{scaler['metadata']['name']}_")


@with_operators
def test_every_pod_that_listens_is_scraped(overlay: str) -> None:
    """Prevents a service without metrics."""
    (monitor,) = of_kind(overlay, "PodMonitor")
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    for pod in pods(overlay):
        assert selects(monitor["spec"]["selector"]["matchLabels"], pod)
        names = {port["name"] for port in pod.container.get("ports", ())}
        assert (endpoint["port"] in names) is pod.listens


@every_overlay
def test_drafts_are_placed_near_verify(overlay: str) -> None:
    """Prevents a step's two messages from crossing zones where they need not."""
    affinity = pod_of(overlay, "draft").spec["affinity"]["podAffinity"]
    terms = affinity["preferredDuringSchedulingIgnoredDuringExecution"]
    assert [term["podAffinityTerm"]["topologyKey"] for term in terms] == [
        "kubernetes.io/hostname",
        "topology.kubernetes.io/zone",
    ]
    for term in terms:
        labels = term["podAffinityTerm"]["labelSelector"]["matchLabels"]
        assert selects(labels, pod_of(overlay, "verify"))


def test_a_group_of_ranks_finds_its_leader() -> None:
    """Prevents a Service of ours from taking the name of the one that resolves leaders.

    That one tells of pods which are not ready; ours does not, and no rank would find the others.
    """
    (group,) = of_kind("multi-node", "LeaderWorkerSet")
    services = {service["metadata"]["name"] for service in of_kind("multi-node", "Service")}
    assert group["metadata"]["name"] not in services
    spec = group["spec"]
    assert spec["startupPolicy"] == "LeaderCreated"
    assert spec["leaderWorkerTemplate"]["restartPolicy"] == "RecreateGroupOnPodRestart"


def test_ranks_of_a_group_run_one_command() -> None:
    """Prevents leaders and workers that wait for each other with different numbers."""
    leader, worker = (pod.container for pod in pods("multi-node") if pod.name == "verify")
    same = ("command", "args", "env", "image", "resources", "volumeMounts", "securityContext")
    assert {key: leader[key] for key in same} == {key: worker[key] for key in same}


def test_overlays_are_those_that_are_rendered() -> None:
    """Prevents an overlay that no test sees."""
    folders = {path.name for path in (DEPLOY / "kubernetes" / "overlays").iterdir()}
    rendered = {path.stem for path in (DEPLOY / "rendered").glob("*.yaml")}
    assert folders == rendered == set(OVERLAYS)
