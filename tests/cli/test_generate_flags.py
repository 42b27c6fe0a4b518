"""`generate`'s flags of sampling and stops: they reach the router, or are refused before it."""

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.cli.test_commands import refused

CLI = [sys.executable, "-m", "domino_cli", "generate", "ab 12"]


def generate(*flags: str) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run([*CLI, *flags], capture_output=True, timeout=120)


def answer(*flags: str) -> dict[str, Any]:
    result = generate("--json", *flags)
    assert result.returncode == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--temperature", "nan"], "temperature: nan; must be from 0 (greedy) to 100"),
        (["--temperature", "-0.1"], "temperature: -0.1; must be from 0"),
        (["--temperature", "warm"], "--temperature: invalid float value: 'warm'"),
        (["--top-p", "0"], "top_p: 0.0; must be above 0 and at most 1"),
        (["--top-k", "-1"], "top_k: -1; must be at least 0"),
        (["--min-p", "inf"], "min_p: inf; must be from 0 to 1"),
        (["--seed", "-1"], "seed: -1; must be at least 0"),
        (["--seed", str(2**63)], "seed: 9223372036854775808 cannot be sent"),
        (["--min-tokens", "1.5"], "--min-tokens: invalid int value: '1.5'"),
    ],
    ids=" ".join,
)
def test_values_out_of_range_start_nothing(
    flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Prevents a minute of loading models before a typo is noticed."""
    code, line = refused(capsys, "generate", "ab 12", *flags)
    assert message in line and code == 2


def test_flags_reach_the_router(tiny_router: str) -> None:
    """Prevents a flag that is parsed and forgotten."""
    sampled = ("--temperature", "2", "--top-k", "9", "--top-p", "0.9", "--min-p", "0.001")
    common = ("--address", tiny_router, "--max-tokens", "12", "--ignore-eos", *sampled)
    first = answer(*common)
    settings = {"temperature": 2.0, "top_k": 9, "top_p": 0.9, "min_p": 0.001}
    assert first["sampling"] == settings | {"seed": first["sampling"]["seed"]}
    assert first["usage"]["completion_tokens"] == 12
    again = answer(*common, "--seed", str(first["sampling"]["seed"]), "--draft-tokens", "0")
    assert again["token_ids"] == first["token_ids"]
    stop = first["text"][3]
    cut = answer(*common, "--seed", str(first["sampling"]["seed"]), "--stop", "§", "--stop", stop)
    assert (cut["finish_reason"], cut["stop"]) == ("stop", stop)
    assert cut["text"] == first["text"].partition(stop)[0]


def test_min_tokens_beyond_the_cap_is_the_routers_refusal(tiny_router: str) -> None:
    """Prevents limits that only the router knows from coming back as a traceback."""
    flags = ("--address", tiny_router, "--max-tokens", "3", "--min-tokens", "4")
    result = generate(*flags)
    assert "min_tokens: 4; must be in 0..3" in result.stderr.decode()
    assert result.returncode == 2


def test_the_summary_tells_a_made_up_seed(tiny_router: str) -> None:
    """Prevents an answer that nobody can get again."""
    flags = ("--address", tiny_router, "--max-tokens", "2", "--temperature", "1")
    assert ", seed " in generate(*flags).stderr.decode()
