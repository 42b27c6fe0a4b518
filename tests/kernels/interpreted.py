"""Runs scripts under Triton's interpreter, in a process of their own.

Another process, because Triton reads TRITON_INTERPRET when it is first imported.
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

# The interpreter makes an int of a one-element array, which NumPy 2.4 refuses. New tensors hold
# NaN, so that what a kernel does not write, or reads too early, shows.
PRELUDE = """
import sys
import torch
from triton.runtime import interpreter

_original = interpreter._patch_lang_tensor

def _patch(tensor, scope):
    _original(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

interpreter._patch_lang_tensor = _patch

def _poisoned(new):
    def fill(*shape, **options):
        out = new(*shape, **options)
        return out.fill_(torch.nan if out.is_floating_point() else -7)
    return fill

torch.empty, torch.empty_like = _poisoned(torch.empty), _poisoned(torch.empty_like)
"""

SEVERAL = """
import linecache

for _name, _script in SCRIPTS.items():
    linecache.cache[_name] = len(_script), None, _script.splitlines(True), _name
    exec(compile(_script, _name, "exec"), {"torch": torch})
"""


def run_all_interpreted(scripts: Mapping[str, str]) -> None:
    """As `run_interpreted`, one after the other in one process, which takes seconds to start.

    The output of a failure names the script.
    """
    run_interpreted(f"SCRIPTS = {dict(scripts)!r}\n{SEVERAL}")


def run_interpreted(script: str) -> None:
    """Raises AssertionError with the script's last output when it fails."""
    environment = os.environ | {
        "TRITON_INTERPRET": "1",
        "PYTHONPATH": os.pathsep.join(["kernels", "protos/gen", "."]),
    }
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + script],
        env=environment,
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
