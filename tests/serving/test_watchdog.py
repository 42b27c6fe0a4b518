"""A step that hangs ends the process; one that only looks alive keeps its requests for ever."""

import subprocess
import sys

SCRIPT = """
import time
from types import SimpleNamespace
from serving.watchdog import watch_steps
engine = SimpleNamespace(step_began=None)
watch_steps(engine, 0.2)
time.sleep(0.5)
print("idle is no hang", flush=True)
engine.step_began = time.monotonic()
time.sleep(600)
"""


def test_a_hanging_step_ends_the_process_with_its_stacks() -> None:
    """Prevents waiting for a group whose engine is stuck, and a fault without a trace."""
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120
    )
    assert (ended.returncode, ended.stdout) == (70, "idle is no hang\n")
    assert "time.sleep" in ended.stderr or 'File "<string>"' in ended.stderr
