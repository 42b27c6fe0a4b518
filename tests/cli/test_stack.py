"""Services as processes: all ready or none left, and the death of one is told."""

import json
import os
import shutil
import signal
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from domino_cli import ends, stack_config
from domino_cli.ends import Ends
from domino_cli.errors import CommandError
from domino_cli.stack import Stack, StackConfig, flags
from domino_client import Client, Completion
from tests.recorded_models import DOMINO_SHIFT, PROMPTS
from tests.services.whole import target_with_tokenizer


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
    """Prevents a second stack that shares the first one's port, or loads models in vain."""
    lines: list[str] = []
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with (
            pytest.raises(CommandError, match=rf"127\.0\.0\.1:{port}: .*another --port"),
            Stack(StackConfig(target=tiny_target, port=port), say=lines.append),
        ):
            pass
    assert lines == []


def test_a_taken_metrics_port_is_named(tiny_target: Path) -> None:
    """Prevents models that load for minutes before the router finds its page's port taken."""
    lines: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        config = StackConfig(target=tiny_target, metrics_port=port)
        with (
            pytest.raises(CommandError, match=rf"127\.0\.0\.1:{port}: .*another --metrics-port"),
            Stack(config, say=lines.append),
        ):
            pass
    assert lines == []


@pytest.mark.parametrize(
    ("draft", "plane", "tried"),
    [
        (None, None, [7, 5000, 5001]),
        (DOMINO_SHIFT, None, [7, 5000, 5001, 5002]),
        (DOMINO_SHIFT, "in-process", [7, 5000, 5001]),
    ],
)
def test_the_ports_of_all_services_are_tried(
    draft: Path | None,
    plane: str | None,
    tried: list[int],
    tiny_target: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Prevents a start that fails late, or for a port that nobody would have listened at."""
    found: list[int] = []
    monkeypatch.setattr(stack_config, "check_port", lambda host, port, *_: found.append(port))
    config = StackConfig(
        target=tiny_target, draft=draft, data_plane=plane, port=7, metrics_port=5000
    )
    config.check_ports()
    assert found == tried


def test_no_metrics_page_is_none_at_all(tiny_target: Path) -> None:
    """Prevents `up --metrics-port 0` whose verify and draft services listen at ports 1 and 2."""
    config = StackConfig(target=tiny_target, draft=DOMINO_SHIFT, metrics_port=0)
    flags = [*config.verify_flags(), *config.draft_flags(), *config.router_flags({})]
    assert "--metrics-port" not in flags


@pytest.mark.parametrize("sockets", [False, True])
def test_what_ends_is_started_again_where_the_others_find_it(
    sockets: bool, tiny_target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prevents `up` that takes a running answer down with a verify service that crashed."""
    lines: list[str] = []
    monkeypatch.setattr(ends, "MOST", 100)
    config = StackConfig(target=tiny_target, threads=1, sockets=tmp_path if sockets else None)
    with Stack(config, say=lines.append) as stack, Client(stack.router_address) as client:
        expected = client.generate("ab", max_tokens=200, ignore_eos=True)
        while "is lost" not in "".join(lines):  # again where the answer had ended before
            stream = client.stream("ab", max_tokens=200, ignore_eos=True)
            chunks = iter(stream)
            begun = next(chunks).token_ids
            os.kill(stack.pids()["verify"], signal.SIGKILL)
            for _ in range(2):
                stack.attend()
            rest = [id_ for chunk in chunks for id_ in chunk.token_ids]
            assert (*begun, *rest) == expected.token_ids
    assert "verify ended with exit code -9; starting it again" in lines
    assert "verify is ready again" in lines


@pytest.mark.parametrize(("plane", "lost"), [("auto", "draft"), ("in-process", "engines")])
def test_a_draft_that_ended_drafts_again(plane: str, lost: str, tmp_path: Path) -> None:
    """Prevents `up` that takes everything down with its draft, or goes on plainly for ever."""
    target = target_with_tokenizer(tmp_path / "target")
    config = StackConfig(target=target, draft=DOMINO_SHIFT, threads=1, width=8, data_plane=plane)

    def ask() -> Completion:
        return client.generate(token_ids=PROMPTS[0], max_tokens=24, ignore_eos=True)

    with Stack(config) as stack, Client(stack.router_address, timeout_s=60) as client:
        before = ask()
        os.kill(stack.pids()[lost], signal.SIGKILL)
        for _ in range(2):
            stack.attend()
        after = ask()
        while not after.speculation.accepted_tokens:  # the draft is asked again after a pause
            after = ask()
    assert after.token_ids == before.token_ids


def test_what_ends_again_and_again_ends_the_stack(
    tiny_target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prevents `up` that starts a service for ever that cannot run, without a reason."""
    monkeypatch.setattr(ends, "MOST", 0)
    with Stack(StackConfig(target=tiny_target)) as stack:
        os.kill(stack.pids()["verify"], signal.SIGKILL)
        with pytest.raises(CommandError, match="verify ended with exit code -9"):
            stack.attend()


def test_ends_are_counted_until_a_service_is_steady() -> None:
    """Prevents a service that crashes once a week from being given up after some weeks."""
    now = 0.0
    counted = Ends(lambda: now)
    for _ in range(ends.MOST):
        assert counted.may_start_again("verify")
    assert not counted.may_start_again("verify")
    assert counted.may_start_again("draft"), "others have nothing to do with it"
    counted.ready("verify")
    now += ends.STEADY_S
    assert counted.may_start_again("verify")


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
