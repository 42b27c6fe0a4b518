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

ROOT = Path(__file__).resolve().parents[2]
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


def start(name: str, folder: Path) -> "subprocess.Popen[str]":
    pod = next(pod for pod in pods("cpu-demo") if pod.name == name)
    text = config_text("cpu-demo", pod).replace('"/models/', '"/srv/models/')
    (folder / f"{name}.toml").write_text(text)
    module = entry_module(pod)
    command = [sys.executable, "-m", module, "--config", f"/srv/{name}.toml", *OWN_PLACE]
    return subprocess.Popen(
        ["unshare", "-m", "sh", "-c", SANDBOX, "sh", str(folder), *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **image_environment()},
    )


@pytest.mark.skipif(not can_unshare(), reason="needs root and mount namespaces")
@pytest.mark.skipif(ROOT.is_relative_to("/tmp"), reason="the sandbox has a /tmp of its own")
def test_engines_get_ready(tmp_path: Path) -> None:
    """Prevents a program that writes beside its mounts: it would end, or warn, in every pod."""
    write_models(tmp_path / "models")
    for name in ("verify", "draft"):
        with start(name, tmp_path) as process:
            assert process.stdout is not None
            line = process.stdout.readline()
            process.terminate()
            _, log = process.communicate(timeout=120)
        assert line and json.loads(line)["event"] == "ready", log
        assert process.returncode == 0, log
        for trouble in ("Read-only", "Permission denied", "ERROR", "WARNING"):
            assert trouble not in log, log
