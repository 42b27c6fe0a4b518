"""Logs of running services: JSON lines with request ids, and never what a request says."""

import io
import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest

from domino_client import BadRequest, Client
from serving.log import JsonLines, about, serving_request, set_up_logs
from tests.services.processes import Process
from tests.services.whole import whole

SECRET = "my PIN is 4711, Müller"
STOP = "the secret end"


def lines(process: Process, name: str) -> list[str]:
    """The process's own, without the prefix of whoever relays them."""
    prefix = f"{name} | "
    return [line.removeprefix(prefix) for line in process.log if line.startswith(prefix)]


@pytest.mark.parametrize("format_", ["json", "text"])
def test_a_request_is_found_in_every_log_and_its_text_in_none(tmp_path: Path, format_: str) -> None:
    """Prevents logs that leak prompts or answers, and requests that cannot be followed."""
    with (
        whole(tmp_path / "target", common={"log_format": format_}) as running,
        Client(running.router.address, timeout_s=60) as client,
    ):
        done = client.generate(SECRET, max_tokens=16, request_id="case-17", ignore_eos=True)
        client.generate(SECRET, max_tokens=3, stop=STOP, request_id="case-18")
        with pytest.raises(BadRequest):
            client.generate(SECRET, max_tokens=16, stop=[STOP] * 99, request_id="case-19")
        with pytest.raises(BadRequest, match="request_id: must be at most 200 printable"):
            client.generate(SECRET, request_id="two\nlines")
    # All lines are there once the services have ended.
    log = lines(running.router, "router")
    everything = "\n".join([*log, *running.verify.log, *running.draft.log])
    ids = re.compile(r"\b" + r",? ".join(map(str, done.token_ids[:4])) + r"\b")
    assert "4711" not in everything and "M\\u00fcller" not in everything
    assert STOP not in everything and done.text not in everything
    assert not ids.search(everything)
    [finished] = [line for line in log if "case-17" in line]
    [refused] = [line for line in log if "case-19" in line]
    if format_ == "text":
        assert "request case-17 finished (length) after 16 tokens" in finished
        assert "request case-19 failed: INVALID_REQUEST (stop)" in refused
        return
    found = json.loads(finished)
    assert (found["service"], found["level"], found["request_id"]) == ("router", "info", "case-17")
    assert (found["finish_reason"], found["mode"]) == ("length", "domino")
    assert (found["prompt_tokens"], found["completion_tokens"]) == (len(SECRET.encode()), 16)
    assert found["total_ms"] >= found["ttft_ms"] > 0
    assert json.loads(refused)["field"] == "stop"
    for name, process in (("verify_service", running.verify), ("draft_service", running.draft)):
        assert all(json.loads(line)["service"] in name for line in lines(process, name))


def record(**extra: Any) -> dict[str, Any]:
    """What JsonLines makes of a record."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines("verify"))
    logger = logging.Logger("there")
    logger.addHandler(handler)
    try:
        raise ValueError("two\nlines")
    except ValueError:
        logger.exception('a "quoted" %s', "name\n", extra=extra)
    [line] = stream.getvalue().splitlines()
    found: dict[str, Any] = json.loads(line)
    return found


def test_a_record_is_one_line_with_its_request() -> None:
    """Prevents a newline in a name from forging a line, and a record of the wrong request."""
    with serving_request("outer"):
        assert record()["request_id"] == "outer"
        found = record(**about("own", ttft_ms=1.5, caller=""))
    assert found["message"] == 'a "quoted" name\n'
    assert found["request_id"] == "own"
    assert found["exception"].endswith("ValueError: two\nlines")
    assert found["ttft_ms"] == 1.5 and "caller" not in found
    assert "request_id" not in record()


def test_set_up_replaces_the_handlers(tmp_path: Path) -> None:
    """Prevents each line twice, once in text and once in JSON."""
    before = logging.root.handlers[:], logging.root.level
    try:
        for format_ in ("text", "json"):
            set_up_logs("router", format_)
            [handler] = logging.root.handlers
            assert isinstance(handler.formatter, JsonLines) == (format_ == "json")
    finally:
        logging.root.handlers[:] = before[0]
        logging.root.setLevel(before[1])
