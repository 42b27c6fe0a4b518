"""Container and compose files: linted, pinned, and of one mind with the programs."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from serving.options import parse
from tests.deploy.manifests import CONFIGS, DEPLOY, MODULES

CONTAINERFILE = (DEPLOY / "Containerfile").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]


class Loader(yaml.SafeLoader):
    """Reads compose's own tags as the values behind them."""


Loader.add_multi_constructor(
    "!", lambda loader, _, node: loader.construct_sequence(node) if node.value != "null" else None
)


def gpu_compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.load((DEPLOY / "compose.gpu.yaml").read_text(), Loader)
    services: dict[str, Any] = found["services"]
    return services


def test_hadolint_has_nothing_to_say() -> None:
    """Prevents what the linter knows: unpinned packages, caches in layers, root."""
    hadolint = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([hadolint, DEPLOY / "Containerfile"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def test_bases_are_pinned_and_every_image_has_its_user() -> None:
    """Prevents images that change by themselves, or run as root."""
    (base,) = re.findall(r"^ARG PYTHON=(.*)$", CONTAINERFILE, re.MULTILINE)
    assert re.fullmatch(r"python:3\.\d+\.\d+-slim-\w+", base)
    for stage in re.split(r"^FROM ", CONTAINERFILE, flags=re.MULTILINE)[1:]:
        source, name = re.match(r"(\S+) AS (\S+)", stage).groups()  # type: ignore[union-attr]
        users = re.findall(r"^USER (.*)$", stage, re.MULTILINE)
        final = name in (*MODULES, "engine", "demo-models")
        inherits = source == "engine"
        assert users == (["10001:10001"] if final and not inherits else []), name


@pytest.mark.parametrize("service", MODULES)
def test_an_image_starts_its_program(service: str) -> None:
    """Prevents a renamed package from being found out in the cluster."""
    stage = CONTAINERFILE.split(f" AS {service}\n")[1].split("\nFROM ")[0]
    assert f'ENTRYPOINT ["python", "-m", "{MODULES[service]}"]' in stage
    assert (DEPLOY.parent / MODULES[service] / "__main__.py").is_file()


@pytest.mark.parametrize("service", MODULES)
@pytest.mark.parametrize("gpu", [False, True], ids=["cpu", "gpu"])
def test_compose_files_start_services_as_the_programs_want(service: str, gpu: bool) -> None:
    """Prevents flags, config files and drain times that compose alone believes in."""
    entry = COMPOSE[service] | (gpu_compose()[service] if gpu else {})
    (mount,) = (v for v in entry["volumes"] if "/etc/domino-serve/" in v)
    source, inside, _ = mount.split(":")
    assert (DEPLOY / source).is_file()
    args = [str(DEPLOY / source) if arg == inside else arg for arg in entry["command"]]
    config = parse(CONFIGS[service], args, prog=service, description="")
    drain_s = int(entry["stop_grace_period"].removesuffix("s"))
    assert drain_s > config.grace_s
    assert entry["read_only"] and entry["user"] == "10001:10001"
    assert f":{config.metrics_port}/readiness" in entry["healthcheck"]["test"][-1]
    if gpu and service != "router":
        (device,) = entry["deploy"]["resources"]["reservations"]["devices"]
        assert len(device["device_ids"]) == 1 and config.device == "cuda"


def test_compose_leads_the_router_to_the_others() -> None:
    """Prevents a router that asks for Kubernetes Services on a machine without Kubernetes."""
    router = COMPOSE["router"]["command"]
    for service, port in (("verify", 50053), ("draft", 50052)):
        assert f"dns:{service}:{port}" in router
    assert COMPOSE["router"]["ports"] == ["127.0.0.1:50051:50051"], "plaintext stays on the machine"
