"""`domino-serve up` with verify and draft in one process, or on Unix sockets."""

import argparse
from pathlib import Path

import pytest

from domino_cli.errors import UsageError
from domino_cli.stack import Stack, StackConfig
from domino_cli.stack_arguments import add_stack_arguments, stack_config
from domino_client import Client
from tests.recorded_models import DOMINO_SHIFT, PROMPTS, TARGET
from tests.services.whole import target_with_tokenizer


def answer(config: StackConfig) -> tuple[tuple[int, ...], set[str], dict[str, str]]:
    """A drafted answer, the processes' names, and the addresses of services."""
    with Stack(config) as stack, Client(stack.router_address, timeout_s=60) as client:
        done = client.generate(token_ids=PROMPTS[0], max_tokens=24, ignore_eos=True)
        assert done.speculation.accepted_tokens > 0
        assert all(address in stack.summary() for address in stack.addresses.values())
        return done.token_ids, set(stack.pids()), dict(stack.addresses)


def test_one_process_and_sockets_answer_as_three_processes_do(tmp_path: Path) -> None:
    """Prevents a way of starting services in which the draft takes no part, or output changes."""
    target = target_with_tokenizer(tmp_path / "target")
    sockets = tmp_path / "sockets"
    usual = StackConfig(target=target, draft=DOMINO_SHIFT, threads=1, width=8, kv_tokens=2048)
    ids, names, _ = answer(usual)
    assert names == {"draft", "verify", "router"}
    one, names, addresses = answer(
        StackConfig(
            target=target, draft=DOMINO_SHIFT, threads=1, width=8, kv_tokens=2048,
            data_plane="in-process",
        )
    )  # fmt: skip
    assert (one, names) == (ids, {"engines", "router"})
    assert addresses["verify"] == addresses["draft"]
    local, _, addresses = answer(
        StackConfig(
            target=target, draft=DOMINO_SHIFT, threads=1, width=8, kv_tokens=2048,
            data_plane="shm", sockets=sockets,
        )
    )  # fmt: skip
    assert local == ids
    assert addresses["verify"] == f"unix:{sockets}/verify.sock"
    assert list(sockets.iterdir()) == []


@pytest.mark.parametrize("flag", ["--draft-device=cuda:1", "--tp=2", "--draft-tp=2"])
def test_one_process_is_one(flag: str) -> None:
    """A flag that is ignored would be believed."""
    parser = argparse.ArgumentParser()
    add_stack_arguments(parser)
    args = parser.parse_args(["--data-plane", "in-process", flag])
    args.mode = None
    with pytest.raises(UsageError, match="needs processes of its own"):
        stack_config(args, show_logs=False)


@pytest.mark.parametrize(
    ("flags", "one"),
    [
        (["--device=cuda"], True),
        (["--device=cuda", "--draft-device=cuda"], True),
        (["--device=cuda", "--data-plane=auto"], False),
        (["--device=cuda:0", "--draft-device=cuda:1"], False),
        (["--device=cuda", "--tp=2"], False),
        (["--device=cpu"], False),
        ([], False),
    ],
)
def test_one_gpu_wants_one_process(flags: list[str], one: bool) -> None:
    """Two processes on one GPU take turns at it, in slices longer than a draft's step."""
    parser = argparse.ArgumentParser()
    add_stack_arguments(parser)
    args = parser.parse_args([f"--target={TARGET}", f"--draft={DOMINO_SHIFT}", *flags])
    args.mode = None
    assert stack_config(args, show_logs=False).in_process is one
