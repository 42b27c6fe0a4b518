"""What the checks of services on GPUs have in common: their flags, and the file they write.

Comes from gpu_verify_services and gpu_draft_services; goes where --json says.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_verify_tree import add_argument, imported_tree


def parser(about: str | None) -> argparse.ArgumentParser:
    """--target, --draft, --json, --device, --max-tokens, --tree."""
    found = argparse.ArgumentParser(description=about)
    found.add_argument("--target", type=Path, required=True)
    found.add_argument("--draft", type=Path, required=True)
    found.add_argument("--json", type=Path, required=True, help="where the result goes")
    found.add_argument("--device", default="cuda")
    found.add_argument("--max-tokens", type=int, default=96, help="an answer (96)")
    add_argument(found)
    return found


def write(options: argparse.Namespace, name: str, found: dict[str, Any]) -> None:
    """What was found, behind where, when and from what it was; name: the program's."""
    devices = torch.cuda.device_count()
    about = {
        "hardware": f"{devices} x {torch.cuda.get_device_name()}" if devices else "cpu",
        "versions": {"torch": torch.__version__},
        "date": time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime()),
        "command": f"python -m benchmarks.{name} --target T --draft D --json FILE",
        "tree": imported_tree(options.tree),
    }
    options.json.write_text(json.dumps(about | found, indent=1) + "\n")
