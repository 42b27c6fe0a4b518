"""Services as processes: all ready or none left, and the death of one is told."""

import json
import os
import shutil
import signal
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from domino_cli.errors import CommandError
from domino_cli.stack import Stack, StackConfig, flags
from domino_client import Client


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_stack_answers_and_leaves_no_process_behind(tiny_target: Path) -> None:
    """Prevents services that go on holding ports and memory after the command that ran them."""
    with Stack(StackConfig(target=tiny_target)) as stack:
        pids = stack.pids()
        assert pids.keys() == {"verify", "router"}
        with Client(stack.router_address) as client:
            completion = client.generate("ab", max_tokens=4, ignore_eos=True)
        assert completion.completion_tokens == 4
    assert not any(map(is_running, pids.values()))


def test_a_draft_for_another_target_is_refused_with_the_field(
    tiny_target: Path, embedded_draft: Path
) -> None:
    """Prevents a router that waits for ever for a service that has already given up."""
    with (
        pytest.raises(CommandError, match=r"ended with exit code 1(.|\n)*vocab_size is 49152"),
        Stack(StackConfig(target=tiny_target, draft=embedded_draft)),
    ):
        pass


def test_a_taken_router_port_is_named(tiny_target: Path) -> None:
    """Prevents a second stack silently sharing the first one's port."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with (
            pytest.raises(CommandError, match=rf"router ended(.|\n)*127\.0\.0\.1:{port}"),
            Stack(StackConfig(target=tiny_target, port=port)),
        ):
            pass


def test_the_death_of_a_service_ends_the_wait(tiny_target: Path) -> None:
    """Prevents `up` standing there with a dead verify service behind a living router."""
    with Stack(StackConfig(target=tiny_target)) as stack:
        os.kill(stack.pids()["verify"], signal.SIGKILL)
        with pytest.raises(CommandError, match="verify ended with exit code -9"):
            stack.wait()


def test_sampling_defaults_of_the_target_reach_the_router(
    tiny_target: Path, tmp_path: Path
) -> None:
    """Prevents `up --use-generation-config` that serves greedy answers all the same."""
    target = shutil.copytree(tiny_target, tmp_path / "target")
    sampling = {"do_sample": True, "temperature": 0.5, "top_k": 3}
    (target / "generation_config.json").write_text(json.dumps(sampling))
    config = StackConfig(target=target, use_generation_config=True)
    with Stack(config) as stack, Client(stack.router_address) as client:
        found = client.model_info().default_sampling
    assert found is not None
    assert (found.temperature, found.top_k) == (0.5, 3)


def test_the_draft_may_have_a_device_of_its_own() -> None:
    """Both models on one GPU, though another was asked for and is idle."""
    config = StackConfig(target=Path("t"), draft=Path("d"), device="cuda:0", draft_device="cuda:1")
    for found, device in ((config.verify_flags(), "cuda:0"), (config.draft_flags(), "cuda:1")):
        assert found[found.index("--device") + 1] == device
    assert "cuda:0" in replace(config, draft_device=None).draft_flags()


def test_settings_left_alone_are_left_to_the_services() -> None:
    """Prevents a second copy of every default that drifts from the services' own."""
    values: dict[str, object] = {"max_sequences": 8, "mode": None, "port": 0, "fast": True}
    assert flags(values) == ["--max-sequences", "8", "--port", "0", "--fast"]
    config = StackConfig(target=Path("t"), draft=Path("d"), width=8)
    assert "--width" in config.verify_flags() and "--width" not in config.draft_flags()
    assert "--dtype" not in config.verify_flags()
