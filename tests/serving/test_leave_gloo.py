"""A process that ends inside a gloo group ends with its own exit status."""

import os
import subprocess
import sys
from pathlib import Path

from serving.unused_port import unused_port

ROOT = Path(__file__).parents[2]
SENDS_AND_ENDS = """
import threading, time
import torch
import torch.distributed as dist
from serving.ranks import join_on_cpus

begun = threading.Event()

class SlowToGo(torch.Tensor):
    def __del__(self):
        if threading.current_thread() is not threading.main_thread():
            begun.set()
            time.sleep(0.1)

join_on_cpus()
held = dist.group.WORLD  # as FSDP's caches hold it
while not begun.wait(0.01):
    dist.all_reduce(torch.ones(1000).as_subclass(SlowToGo), async_op=True)
"""


def test_a_tensor_that_gloo_lets_go_of_last_does_not_abort_the_end() -> None:
    """gloo's thread waited for an interpreter that had ended: -6 from 4 training ranks of 36
    while ranks did not leave the group at all, and from one more after that."""
    environment = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    ended = subprocess.run(
        [sys.executable, "-c", SENDS_AND_ENDS],
        env={**os.environ, **environment, "MASTER_PORT": str(unused_port())},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
