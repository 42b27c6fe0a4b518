"""Rendered manifests are current and valid: strict, and kinds without a schema are refused."""

import json
import os
import shutil
import subprocess
from copy import deepcopy
from typing import Any, Final

import jsonschema
import kubernetes_validate
import pytest

from tests.deploy.manifests import DEPLOY, OVERLAYS, Manifest, manifests, of_kind

KUBERNETES: Final = "1.34"
OWN_KINDS: Final = {file.stem: file for file in (DEPLOY / "schemas").glob("*.json")}


def check(manifest: Manifest) -> None:
    """Raises when a cluster of that version, with the operators installed, would refuse it."""
    schema = OWN_KINDS.get(manifest["kind"])
    if schema:
        jsonschema.validate(manifest, json.loads(schema.read_text()))
    else:
        kubernetes_validate.validate(manifest, KUBERNETES, strict=True)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_rendered_manifests_are_current(overlay: str) -> None:
    """Prevents tests of manifests that the sources no longer say."""
    if not shutil.which("kubectl"):
        assert not os.environ.get("CI"), "kubectl is needed to check deploy/rendered"
        pytest.skip("no kubectl here to render with")
    command = ["kubectl", "kustomize", f"{DEPLOY}/kubernetes/overlays/{overlay}"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rendered = (DEPLOY / "rendered" / f"{overlay}.yaml").read_text()
    assert done.stdout == rendered, "run `make deploy-render` and commit deploy/rendered"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_manifest_is_valid(overlay: str) -> None:
    """Prevents misspelt and misplaced fields, which a cluster drops or refuses."""
    for manifest in manifests(overlay):
        check(manifest)


def test_templates_inside_own_kinds_are_valid() -> None:
    """Prevents a LeaderWorkerSet whose pods nobody looked at."""
    (group,) = of_kind("multi-node", "LeaderWorkerSet")
    for name in ("leaderTemplate", "workerTemplate"):
        template = group["spec"]["leaderWorkerTemplate"][name]
        check({"apiVersion": "v1", "kind": "PodTemplate", "template": template})


def test_every_schema_is_used() -> None:
    """Prevents schemas of kinds that are gone."""
    kinds = {found["kind"] for overlay in OVERLAYS for found in manifests(overlay)}
    assert set(OWN_KINDS) <= kinds


def _broken(kind: str, *path: str | int, value: Any) -> Manifest:
    """A manifest of multi-node with one value at `path` changed or added."""
    manifest = deepcopy(of_kind("multi-node", kind)[0])
    place: Any = manifest
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return manifest


@pytest.mark.parametrize(
    "manifest",
    [
        _broken("Deployment", "kind", value="Deploymint"),
        _broken("ScaledObject", "kind", value="ScaledJob"),
        _broken("Deployment", "spec", "template", "spec", "containers", 0, "prots", value=[]),
        _broken("Service", "spec", "ports", 0, "port", value="http"),
        _broken("LeaderWorkerSet", "apiVersion", value="leaderworkerset.x-k8s.io/v2"),
        _broken("LeaderWorkerSet", "spec", "size", value=2),
        _broken("ScaledObject", "spec", "triggers", 0, "metadata", "threshold", value=8),
        _broken("PodMonitor", "spec", "endpoints", value=[]),
    ],
    ids=lambda manifest: manifest["kind"],
)
def test_the_check_finds(manifest: Manifest) -> None:
    """Prevents a check that lets everything through, as unknown kinds would be."""
    with pytest.raises((kubernetes_validate.SchemaNotFoundError, jsonschema.ValidationError)):
        check(manifest)
