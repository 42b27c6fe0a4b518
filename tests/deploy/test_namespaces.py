"""The containers' commands in network namespaces whose wires are what the policies allow."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.deploy.containers import entry_module, write_models
from tests.deploy.manifests import config_text, pods
from tests.deploy.namespaces import Namespaces, available, namespaces
from tests.deploy.test_network import GRPC, METRICS, reachable
from tests.patience import patient
from tests.recorded_models import PROMPTS

OVERLAY = "cpu-demo"
OUTSIDE = ("client", "stranger", "prometheus")
ASK = f"""
import sys
from domino_client import Client
with Client(sys.argv[1], timeout_s=60) as client:
    done = client.generate(token_ids={PROMPTS[1]}, max_tokens=40, ignore_eos=True)
    print(done.speculation.mode, *done.token_ids)
"""
CONNECT = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 5)"
SCRAPE = (
    "import sys, urllib.request as u; print(u.urlopen(sys.argv[1], timeout=30).read().decode())"
)


@contextmanager
def running(net: Namespaces, folder: Path) -> Iterator[dict[str, "subprocess.Popen[str]"]]:
    """The three services, each on the ports of its config file; the router is told addresses."""
    models = write_models(folder / "models")
    place = {name: f"{net.address[name]}:{GRPC[name]}" for name in ("verify", "draft")}
    more = {"router": [part for name in place for part in (f"--{name}", place[name])]}
    by_name = {pod.name: pod for pod in pods(OVERLAY)}
    processes: dict[str, subprocess.Popen[str]] = {}
    try:
        for name in ("verify", "draft", "router"):
            file = folder / f"{name}.toml"
            text = config_text(OVERLAY, by_name[name])
            file.write_text(text.replace('"/models/', f'"{models}/'))
            module = entry_module(by_name[name])
            args = ["-m", module, "--config", str(file), *more.get(name, ())]
            processes[name] = net.start(name, sys.executable, *patient(args))
        for name, process in processes.items():
            assert process.stdout is not None
            address = json.loads(process.stdout.readline())["address"]
            assert address == f"0.0.0.0:{GRPC[name]}"
        yield processes
    finally:
        for process in processes.values():
            process.kill()
            process.communicate()


def ask(net: Namespaces) -> list[str]:
    """Mode and ids of an answer, as the client gets it."""
    address = f"{net.address['router']}:{GRPC['router']}"
    done = net.run("client", sys.executable, "-c", ASK, address)
    assert not done.returncode, done.stderr
    return done.stdout.split()


@pytest.mark.skipif(not available(), reason="needs root and network namespaces")
def test_services_need_no_other_paths_than_the_policies_leave(tmp_path: Path) -> None:
    """Prevents policies that starve a service, and a draft's loss that reaches the client."""
    paths = reachable(OVERLAY)
    with namespaces([*OUTSIDE, *GRPC]) as net:
        for one, other in {(a, b) for a, b, _ in paths if a in (*OUTSIDE, *GRPC)}:
            net.wire(one, other)
        with running(net, tmp_path) as processes:
            mode, *ids = ask(net)
            assert mode == "domino" and len(ids) == 40
            for name, port in GRPC.items():
                for peer in OUTSIDE:
                    where = (net.address[name], str(port))
                    done = net.run(peer, sys.executable, "-c", CONNECT, *where)
                    wired = any((peer, name) == path[:2] for path in paths)
                    assert (done.returncode == 0) is wired, (peer, name, done.stderr)
                url = f"http://{net.address[name]}:{METRICS}/metrics"
                assert (
                    "domino_ready 1.0"
                    in net.run("prometheus", sys.executable, "-c", SCRAPE, url).stdout
                )
            processes["draft"].kill()
            processes["draft"].wait()
            assert ask(net)[1:] == ids
