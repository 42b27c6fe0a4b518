"""A service in what the manifests give it: a read-only root, /tmp and /cache, no capabilities."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy.containers import OWN_PLACE, entry_module, write_models
from tests.deploy.manifests import DEPLOY, config_text, pods

SANDBOX = """
set -e
mount --make-rprivate /
mount --bind "$1" /srv
mount -t tmpfs tmpfs /tmp
mount -o remount,bind,ro /srv
mount -o remount,bind,ro /
if touch /srv/here 2>/dev/null || touch /usr/here 2>/dev/null; then exit 9; fi
mkdir /tmp/cache
shift
exec setpriv --bounding-set=-all --inh-caps=-all --no-new-privs "$@"
"""


def can_unshare() -> bool:
    return os.geteuid() == 0 and not subprocess.run(["unshare", "-m", "true"]).returncode


def image_environment() -> dict[str, str]:
    """What the engines' image sets; /cache is a folder of the sandbox's only writable place."""
    text = (DEPLOY / "Containerfile").read_text()
    found = dict(re.findall(r"\b([A-Z_]+)=(\S+)", " ".join(re.findall(r"^ENV (.*)$", text, re.M))))
    return {name: value.replace("/cache", "/tmp/cache", 1) for name, value in found.items()}


@pytest.mark.skipif(not can_unshare(), reason="needs root and mount namespaces")
@pytest.mark.parametrize("name", ["verify", "draft"])
def test_it_gets_ready(name: str, tmp_path: Path) -> None:
    """Prevents a program that writes beside its mounts: it would end, or warn, in every pod."""
    write_models(tmp_path / "models")
    pod = next(pod for pod in pods("cpu-demo") if pod.name == name)
    config = tmp_path / f"{name}.toml"
    config.write_text(config_text("cpu-demo", pod).replace('"/models/', '"/srv/models/'))
    command = [sys.executable, "-m", entry_module(pod), "--config", f"/srv/{name}.toml", *OWN_PLACE]
    process = subprocess.Popen(
        ["unshare", "-m", "sh", "-c", SANDBOX, "sh", str(tmp_path), *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **image_environment()},
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    process.terminate()
    _, log = process.communicate(timeout=120)
    assert line and json.loads(line)["event"] == "ready", log
    assert process.returncode == 0, log
    assert "Read-only" not in log and "Permission denied" not in log
    assert "ERROR" not in log and "WARNING" not in log, log
