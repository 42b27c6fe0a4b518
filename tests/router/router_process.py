"""The real router as a process of its own, as users run it."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.patience import patient


def command(target: Path, verify: str, *flags: str) -> list[str]:
    module = ["router", "--target", str(target), "--verify", verify, *flags]
    return [sys.executable, "-m", *patient(module)]


@contextmanager
def running_router(target: Path, verify: str, *flags: str) -> Iterator[str]:
    """Starts `python -m router` on a free port; gives its address."""
    process = subprocess.Popen(command(target, verify, *flags), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line, f"the router ended with exit code {process.wait()} before it was ready"
        yield json.loads(line)["address"]
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()
