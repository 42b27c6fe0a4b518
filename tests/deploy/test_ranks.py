"""The command of a group over two nodes, run as two processes with a rank each, on the CPU."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from domino_serve.v1 import speculation_pb2 as spec
from domino_serve.v1.verify_pb2_grpc import VerifyServiceStub
from serving.channel import channel
from serving.unused_port import unused_port
from tests.deploy.containers import OWN_PLACE, write_models
from tests.deploy.manifests import config_text, pods
from tests.recorded_models import PROMPTS
from tests.services.requests import start

END_S, TOKENS = 120, 60
ON_CPU = ["--device", "cpu", "--dtype", "float32", "--threads", "1", "--kv-tokens", "2048"]


def command(index: int, port: int, folder: Path) -> list[str]:
    """The leader's (0) or the worker's, with what the controller would have put in its place."""
    pod = next(
        pod for pod in pods("multi-node") if pod.name == "verify" and pod.listens == (not index)
    )
    given = {
        "$(LWS_GROUP_SIZE)": str(pod.size),
        "$(LWS_WORKER_INDEX)": str(index),
        "$(LWS_LEADER_ADDRESS)": "127.0.0.1",
        "--nproc-per-node=4": "--nproc-per-node=1",
        "--master-port=29500": f"--master-port={port}",
    }
    file = folder / "verify.toml"
    file.write_text(config_text("multi-node", pod).replace('"/models/', f'"{folder}/'))
    args = " ".join(pod.container["args"]).replace("/etc/domino-serve/verify.toml", str(file))
    for placeholder, value in given.items():
        assert placeholder in args
        args = args.replace(placeholder, value)
    python, *rest = pod.container["command"]
    assert python == "python"
    return [sys.executable, *rest, *args.split(), *OWN_PLACE, *ON_CPU]


@contextmanager
def running_group(folder: Path) -> Iterator[list[subprocess.Popen[str]]]:
    port = unused_port()
    nodes = [
        subprocess.Popen(
            command(index, port, folder), stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        for index in (0, 1)
    ]
    try:
        yield nodes
    finally:
        for node in nodes:
            with suppress(ProcessLookupError):
                os.killpg(node.pid, signal.SIGKILL)  # torchrun and its rank
            node.wait()
            assert node.stdout is not None
            node.stdout.close()


def test_a_group_over_two_nodes_serves_and_drains(tmp_path: Path) -> None:
    """Prevents ranks that never meet, and a drain that one node's SIGTERM cuts short."""
    with running_group(write_models(tmp_path / "models")) as nodes:
        assert nodes[0].stdout is not None
        address = json.loads(nodes[0].stdout.readline())["address"]
        with channel(address) as calls:
            call = start(VerifyServiceStub(calls), PROMPTS[0], TOKENS)
            for node in nodes:
                node.send_signal(signal.SIGTERM)
            ids, done = call.finish()
        assert (len(ids), done.finish_reason) == (TOKENS, spec.FINISH_REASON_LENGTH)
        for node in nodes:
            node.wait(END_S)
