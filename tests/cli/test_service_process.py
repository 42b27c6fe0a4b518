"""A child process: its ready line, its log, its end, and that it never outlives us."""

import os
import queue
import select
import signal
import subprocess
import sys

import pytest

from domino_cli.service_process import Event, ServiceProcess, ready_address


def start(behaviour: str, lines: list[str]) -> "tuple[ServiceProcess, queue.SimpleQueue[Event]]":
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    service = ServiceProcess(
        "fake", "tests.cli.fake_service", [behaviour], events=events, say=lines.append
    )
    return service, events


def test_ready_line_becomes_an_event_and_the_log_is_relayed() -> None:
    """Prevents a start that waits for ever, and logs of three services without a name."""
    lines: list[str] = []
    service, events = start("serves", lines)
    assert events.get(timeout=30) == Event("fake", address="127.0.0.1:1")
    service.stop(10)
    assert lines == ["fake | loading"]
    assert events.get(timeout=30).exit_code == -15


def test_a_failed_start_is_reported_with_its_last_lines() -> None:
    """Prevents 'exit code 1' without the reason that the service printed."""
    service, events = start("fails", [])
    assert events.get(timeout=30) == Event("fake", exit_code=1)
    assert list(service.log) == ["loading", "fake: target: no such folder"]
    service.stop(10)


def test_a_service_that_ignores_sigterm_is_killed() -> None:
    """Prevents processes that stay behind and hold ports and memory."""
    lines: list[str] = []
    service, events = start("deaf", lines)
    assert events.get(timeout=30).address is not None
    service.stop(0.1)
    assert "killing" in lines[-1]
    with pytest.raises(ProcessLookupError):
        os.kill(service.pid, 0)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP])
def test_services_end_with_whoever_started_them(number: signal.Signals) -> None:
    """Prevents services that hold ports and memory after `up` is killed, or its terminal closed."""
    command = [sys.executable, "-m", "tests.cli.fake_parent"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        services = [os.pidfd_open(pid) for pid in pids]
        parent.send_signal(number)
        assert parent.wait(30) == -number
    assert len(services) == 2
    for service in services:
        assert select.select([service], [], [], 30)[0], "a service outlives its parent"
        os.close(service)


@pytest.mark.parametrize("line", ["", "null", "[1]", '{"event": "other"}', "not json"])
def test_other_stdout_lines_are_not_ready_lines(line: str) -> None:
    """Prevents a library's print to stdout from being taken for, or breaking, the ready line."""
    assert ready_address(line) is None
