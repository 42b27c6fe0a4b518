"""The command line as a user meets it: exit codes, one-line errors, JSON, Ctrl-C."""

import errno
import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from domino_cli.__main__ import COMMANDS, main
from draft_service.config import DraftServiceConfig
from tests.cli.test_stack import is_running
from verify_service.config import VerifyConfig

CLI = [sys.executable, "-m", "domino_cli"]
HELP = """
import contextlib, sys
sys.modules["torch"] = None
from domino_cli.__main__ import main
for command in sys.argv[1:]:
    with contextlib.suppress(SystemExit):
        main([*command.split(), "--help"])
"""


def run(*arguments: str, stdin: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run([*CLI, *arguments], input=stdin, capture_output=True, timeout=240)


def error_line(result: "subprocess.CompletedProcess[bytes]") -> str:
    """The only line on stderr: no usage text, no traceback."""
    (line,) = result.stderr.decode().splitlines()
    return line


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """The exit code and the only line, of a command that starts nothing."""
    try:
        code = main(arguments)
    except SystemExit as end:  # argparse's
        code = end.code  # type: ignore[assignment]
    out, err = capsys.readouterr()
    (line,) = err.splitlines()
    assert out == ""
    return code, line


def test_help_explains_every_command_without_torch() -> None:
    """Prevents help that takes seconds, or fails where only the client is installed."""
    result = subprocess.run(
        [sys.executable, "-c", HELP, *COMMANDS, "data regenerate", "models pull"],
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("usage: domino-serve") == len(COMMANDS) + 2
    assert "None" not in result.stdout.replace("(default: None)", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["generate", ""], "prompt: is empty"),
        (["generate", "x", "--max-tokens", "0"], "--max-tokens: '0'"),
        (["generate", "x", "--mode", "fast"], "--mode: invalid choice: 'fast'"),
        (["generate", "x", "--mode", "domino", "--draft", "none"], "needs a draft"),
        (["generate", "x", "--target", "nowhere"], "'nowhere' is neither a folder"),
        (["generate", "x", "--address", "a:1", "--width", "4"], "--width is for services"),
        (["generate", "x", "--address", "a:1", "--logs"], "--logs is for services"),
        (["generate", "x", "--address", "localhost"], "'localhost' is neither HOST:PORT"),
        (["generate", "x", "--address", "http://a:1"], "'http://a:1' is neither HOST:PORT"),
        (
            ["generate", "x", "--address", "localhost:99999"],
            "'localhost:99999' is neither HOST:PORT",
        ),
        (["bench"], "cpu | acceptance | serve"),
        (["bench", "serve", "--arms", "fast"], "arm 'fast' is unknown"),
        (["bench", "router", "--waves", "0"], "'0' is not an integer of at least 1"),
        (
            ["generate", "x", "--address", "a:1", "--use-generation-config"],
            "--use-generation-config is for services",
        ),
        (["up", "--port", "70000"], "--port: '70000'"),
        (["up", "--host", ""], "--host: ''"),
        (["up", "--metrics-port", "65534"], "--metrics-port: '65534' leaves no ports"),
        (["up", "--draft", "none", "--width", "4"], "--width 4 needs a draft: give --draft"),
        (
            ["demo", "--draft", "none", "--domino-candidates", "0"],
            "--domino-candidates 0 needs a draft: give --draft",
        ),
        (["up", "--domino-candidates", "-1"], "'-1' is not an integer of at least 0"),
        (["up", "--confidence-threshold", "1"], "'1' is not a number from 0 to below 1"),
        (["models", "pull", "gpt-9"], "unknown name 'gpt-9'"),
        (["inspect", "nowhere"], "'nowhere' is neither a folder"),
        (["token", "a", "--days", "9999999"], "--days 9999999: ends behind the year 9999"),
        (["train", "smoke", "lr=1"], "smoke takes no settings"),
        (["fly"], "'fly'"),
    ],
)
def test_a_users_mistake_is_one_line_and_code_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Prevents tracebacks, and services started for a request that cannot work."""
    code, line = refused(capsys, *arguments)
    assert message in line and code == 2


def test_stdin_without_text_is_a_mistake_too() -> None:
    """Prevents a whole start of services for `generate -` behind a command that failed."""
    result = run("generate", "-")
    assert "prompt: is empty" in error_line(result)
    assert result.returncode == 2


def test_a_router_that_is_not_up_is_one_line_and_code_1() -> None:
    """Prevents a hang or a gRPC dump where the address is wrong."""
    result = run("generate", "x", "--address", "127.0.0.1:1")
    line = error_line(result)
    assert "127.0.0.1:1" in line and "`domino-serve up`" in line
    assert result.returncode == 1


def test_a_benchmark_without_room_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prevents a traceback where data sets are fetched or figures are written."""

    def full(argv: list[str]) -> int:
        raise OSError(errno.ENOSPC, "No space left on device", "figures.json")

    monkeypatch.setattr("benchmarks.timeline.main", full)
    code, line = refused(capsys, "bench", "timeline", "FILE")
    assert "No space left on device: 'figures.json'" in line and code == 1


def test_a_draft_service_that_is_not_up_is_one_line_and_code_1(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Prevents an update whose failure names no remedy."""
    update = ("update-draft", "--draft-address", "127.0.0.1:1", "--draft", "folder")
    code, line = refused(capsys, *update)
    assert "127.0.0.1:1" in line and "--draft-address" in line
    assert code == 1


def test_defaults_in_help_are_the_services_own(capsys: pytest.CaptureFixture[str]) -> None:
    """Prevents help that tells of defaults which the services have changed."""
    with pytest.raises(SystemExit):
        main(["up", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    told = {
        name: re.search(rf"--{name}.*?\(default: ([^)]*)\)", text.rpartition("services:")[2])
        for name in ("device", "dtype", "max-sequences", "domino-candidates")
    }
    own = {spec.name: spec.default for spec in (*fields(DraftServiceConfig), *fields(VerifyConfig))}
    for name, match in told.items():
        assert match and match[1] == str(own[name.replace("-", "_")]), name


def test_json_answer_has_text_ids_usage_and_speculation(tiny_router: str) -> None:
    """Prevents scripts that have to scrape the terminal text."""
    arguments = ("generate", "-", "--address", tiny_router, "--json", "--max-tokens", "3")
    result = run(*arguments, stdin=b"ab 12")
    assert result.returncode == 0, result.stderr
    answer = json.loads(result.stdout)
    assert answer["usage"]["prompt_tokens"] == 4
    assert answer["usage"]["completion_tokens"] == len(answer["token_ids"])
    assert answer["speculation"]["mode"] == "ar"
    assert answer["speculation"]["acceptance_length"] == 1.0
    assert answer["finish_reason"] in ("stop", "length")
    assert isinstance(answer["text"], str) and answer["timings"]["client_ttft_ms"] > 0


def test_a_refused_request_names_the_field(tiny_router: str) -> None:
    """Prevents a refusal that leaves the user guessing which flag was meant."""
    result = run("generate", "ab", "--address", tiny_router, "--mode", "domino")
    assert "mode" in error_line(result)
    assert result.returncode == 2


def heed_ctrl_c() -> None:
    """A shell's background jobs, as tests may be, inherit that SIGINT is ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_ctrl_c_ends_up_and_all_its_services(tiny_target: Path) -> None:
    """Prevents orphans: Ctrl-C on `up` is the normal way to stop a local stack."""
    arguments = [*CLI, "up", "--target", str(tiny_target), "--port", "0"]
    pipe = subprocess.PIPE
    with subprocess.Popen(arguments, stdout=pipe, stderr=pipe, preexec_fn=heed_ctrl_c) as up:
        assert up.stdout is not None
        lines = [up.stdout.readline().decode() for _ in range(2)]
        pids = [int(re.findall(r"pid (\d+)", line)[0]) for line in lines]
        assert all(map(is_running, pids))
        os.kill(up.pid, signal.SIGINT)
        _, log = up.communicate(timeout=240)
    assert up.returncode == 0, log
    assert not any(map(is_running, pids))


def test_inspect_shows_what_was_understood_of_a_target(tiny_target: Path) -> None:
    """Prevents guessing why a service refused a checkpoint, or served it oddly."""
    result = run("inspect", str(tiny_target), "--json")
    facts = json.loads(result.stdout)
    assert (facts["kind"], facts["tensors"]["count"]) == ("target", 11)
    assert facts["config"]["num_kv_heads"] == 2
    text = run("inspect", str(tiny_target)).stdout.decode()
    assert re.search(r"model +llama, .*hidden 32,", text) and "head tied to the embedding" in text


def test_inspect_checks_a_draft_against_a_target(embedded_draft: Path, tiny_target: Path) -> None:
    """Prevents finding out at start-up, on the machine with the GPU, that the two do not fit."""
    alone = json.loads(run("inspect", str(embedded_draft), "--json").stdout)
    assert (alone["kind"], alone["config"]["block_size"]) == ("draft", 16)
    assert alone["tensors"]["parameters"] == 19_658_880
    wrong = run("inspect", str(embedded_draft), "--target", str(tiny_target))
    assert "vocab_size is 49152" in error_line(wrong)
    assert wrong.returncode == 1
