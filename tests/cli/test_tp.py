"""`--tp 2` on a CPU: two processes hold the tiny target, and neither outlives the other."""

import os
import signal
import time
from pathlib import Path

import pytest

from domino_cli.stack import Stack, StackConfig
from domino_client import Client
from tests.cli.test_stack import is_running


def test_two_ranks_answer_as_one_and_end_together(tiny_target: Path) -> None:
    """A rank left behind keeps its GPU; one stopped too early hangs the request that runs."""
    answers = []
    for tp in (1, 2):
        with Stack(StackConfig(target=tiny_target, tp=tp, threads=1)) as stack:
            pids = stack.pids()
            with Client(stack.router_address) as client:
                answers.append(client.generate("ab", max_tokens=8, ignore_eos=True).token_ids)
        assert not any(map(is_running, pids.values()))
    assert list(pids) == ["rank1", "verify", "router"]
    assert answers[0] == answers[1]


@pytest.mark.parametrize("lost", ["rank1", "verify"])
def test_a_lost_rank_ends_the_group_which_starts_again(tiny_target: Path, lost: str) -> None:
    """A group without one of its ranks answers nothing, and would never say so."""
    lines: list[str] = []
    config = StackConfig(target=tiny_target, tp=2, threads=1)
    with Stack(config, say=lines.append) as stack, Client(stack.router_address) as client:
        expected = client.generate("ab", max_tokens=8, ignore_eos=True).token_ids
        before = stack.pids()
        os.kill(before[lost], signal.SIGKILL)
        while not any("is gone; the group cannot go on" in line for line in lines):
            time.sleep(0.01)  # the one that is left; `attend` would end it before it has seen that
        for _ in range(2):
            stack.attend()
        assert client.generate("ab", max_tokens=8, ignore_eos=True).token_ids == expected
        changed = [name for name, pid in stack.pids().items() if pid != before[name]]
    assert changed == ["rank1", "verify"]
