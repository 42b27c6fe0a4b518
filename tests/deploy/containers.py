"""A manifest's containers as processes: the image's entry point, the manifest's arguments.

Paths of volumes become folders of the test; loopback and free ports take the place of the pod's.
"""

import queue
import re
import shutil
import subprocess
from pathlib import Path

import tokenizers
from tokenizers import models as tokenizer_models

from domino_cli.service_process import Event, ServiceProcess
from tests.deploy.manifests import DEPLOY, Manifest, Pod, config_text
from tests.recorded_models import DOMINO_SHIFT, TARGET, VOCAB

START_S = 120.0
OWN_PLACE = ["--host", "127.0.0.1", "--port", "0", "--metrics-port", "0"]


def write_models(folder: Path) -> Path:
    """target/ and draft/ as on the models' volume: the recorded tiny pair, with a tokenizer."""
    shutil.copytree(TARGET, folder / "target")
    shutil.copytree(DOMINO_SHIFT, folder / "draft")
    words = {f"w{i}": i for i in range(VOCAB)}
    tokenizer = tokenizers.Tokenizer(tokenizer_models.WordLevel(words, unk_token="w0"))
    tokenizer.save(str(folder / "target" / "tokenizer.json"))
    (folder / "target" / "tokenizer_config.json").write_text("{}")
    return folder


def check_sums(container: Manifest, models: Path, sums: str) -> subprocess.CompletedProcess[str]:
    """Runs the init container that compares the models with their sums."""
    file = models.parent / "SHA256SUMS"
    file.write_text(sums)
    command = [str(file) if part.endswith("SHA256SUMS") else part for part in container["command"]]
    assert container["workingDir"] == "/models"
    return subprocess.run(command, cwd=models, capture_output=True, text=True)


def entry_module(pod: Pod) -> str:
    """What the image runs."""
    text = (DEPLOY / "Containerfile").read_text()
    stage = text.split(f" AS {pod.name}\n")[1].split("\nFROM ")[0]
    (module,) = re.findall(r'^ENTRYPOINT \["python", "-m", "(\w+)"\]$', stage, re.MULTILINE)
    return str(module)


class Running:
    """A pod's container, starting; address() waits until it is ready."""

    def __init__(self, overlay: str, pod: Pod, models: Path, folder: Path) -> None:
        folder.mkdir()
        file = folder / f"{pod.name}.toml"
        file.write_text(config_text(overlay, pod).replace('"/models/', f'"{models}/'))
        mounted = f"/etc/domino-serve/{pod.name}.toml"
        args = [str(file) if arg == mounted else arg for arg in pod.container["args"]]
        self.log: list[str] = []
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.process = ServiceProcess(
            pod.name,
            entry_module(pod),
            [*args, *OWN_PLACE],
            events=self.events,
            say=self.log.append,
        )

    def address(self) -> str:
        event = self.events.get(timeout=START_S)
        assert event.address is not None, "\n".join(self.log)
        return event.address

    def exit_code(self) -> int | None:
        """Waits for the end."""
        return self.events.get(timeout=START_S).exit_code
