"""Locust in a process of its own against the null server, with every warning an error there."""

import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.service_processes import Started, started
from domino_cli.errors import CommandError
from loadtest.__main__ import main
from loadtest.plan import Plan
from loadtest.prompts import LoadPrompt
from loadtest.run import prepare, run
from loadtest.summary import summarise
from serving.unused_port import unused_port

STRICT = (sys.executable, "-W", "error")


@pytest.fixture(scope="module")
def server() -> Iterator[Started]:
    with started("loadtest.null_server", {"tokens_per_chunk": 3}) as null:
        yield null


def plan(address: str, count: int, **more: float) -> Plan:
    prompts = tuple(LoadPrompt(workload="ids", index=i, token_ids=(1, 2)) for i in range(count))
    return Plan(address=address, prompts=prompts, max_tokens=8, timeout_s=30, **more)  # type: ignore[arg-type]


def test_closed_loop_answers_every_prompt_once(server: Started, tmp_path: Path) -> None:
    """Prevents requests lost at locust's end, warm-ups counted, and times rounded as locust's."""
    asked = plan(server.address, 12, concurrency=4, warm_ups=4)
    outcome = run(asked, tmp_path / "r.jsonl", python=STRICT)
    assert outcome.incomplete is None
    assert sorted(record.index for record in outcome.records) == list(range(12))
    for record in outcome.records:
        assert record.token_counts == (3, 3, 2) and len(record.token_times_s) == 3
        assert record.sent_s >= 0 and record.step_tokens == 8
    assert any(record.ttft_s * 1e3 % 1 for record in outcome.records)
    found = summarise(outcome.records, asked.settings())
    assert found["completed"] == 12 and found["max_concurrent_requests"] <= 4


def test_open_loop_sends_at_its_own_pace(server: Started, tmp_path: Path) -> None:
    """Prevents arrivals that wait for answers: none is sent before its time."""
    outcome = run(plan(server.address, 10, request_rate=100.0), tmp_path / "r.jsonl", python=STRICT)
    assert len(outcome.records) == 10 and outcome.incomplete is None
    assert all(record.sent_s >= record.scheduled_s for record in outcome.records)
    assert len({record.scheduled_s for record in outcome.records}) == 10


def test_turns_follow_each_other_with_the_answers_between(server: Started, tmp_path: Path) -> None:
    """Prevents MT-Bench's second turn from being asked without the first."""
    prompt = LoadPrompt(workload="mt-bench", index=0, turns=("one", "two"))
    asked = Plan(address=server.address, prompts=(prompt,), max_tokens=2)
    records = run(asked, tmp_path / "r.jsonl", python=STRICT).records
    assert [record.turn for record in records] == [0, 1]
    assert records[1].sent_s >= records[0].done_s


def test_a_server_that_dies_leaves_a_marked_part(tmp_path: Path) -> None:
    """Prevents a crash from taking the finished requests' records with it, or passing unseen."""
    file = tmp_path / "r.jsonl"
    with started("loadtest.null_server", {"chunk_ms": 20}) as null:
        killer = threading.Thread(target=kill_after, args=(null.pid, file))
        killer.start()
        outcome = run(plan(null.address, 4000, concurrency=2), file, python=STRICT)
        killer.join(60)
    good = [record for record in outcome.records if record.ok]
    assert 4 <= len(good) < 4000
    assert outcome.incomplete and "PEER_UNAVAILABLE" in outcome.incomplete
    assert len(outcome.records) - len(good) <= 2, "nothing more is sent once the server is gone"


def kill_after(pid: int, file: Path, lines: int = 4) -> None:
    """Ends a process once the file has so many records."""
    while not file.exists() or file.read_text().count("\n") < lines:
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)


def test_records_that_cannot_be_written_are_told_before(server: Started, tmp_path: Path) -> None:
    """Prevents an hour's run whose results have nowhere to go."""
    (tmp_path / "file").write_text("")
    with pytest.raises(CommandError, match="cannot be written"):
        run(plan(server.address, 1), tmp_path / "file" / "r.jsonl")


def test_locusts_own_page_shows_the_run(server: Started, tmp_path: Path) -> None:
    """Prevents a page without our requests on it."""
    command = prepare(plan(server.address, 3), tmp_path / "r.jsonl")
    page = ["--autostart", "--web-host", "127.0.0.1", "--web-port", str(unused_port())]
    process = subprocess.Popen([*STRICT, *command, *page], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        assert any("Starting web interface" in line for line in process.stderr)
        url = f"http://127.0.0.1:{page[-1]}/stats/requests"
        while b'"E2E"' not in (found := answer(url)):
            assert process.poll() is None
        assert b'"ids"' in found
    finally:
        process.terminate()
        process.communicate()


def answer(url: str) -> bytes:
    """What the page says; nothing while it does not listen yet."""
    try:
        with urllib.request.urlopen(url, timeout=10) as response:
            return bytes(response.read())
    except urllib.error.URLError:
        time.sleep(0.05)
        return b""


def test_the_command_prints_a_summary_and_keeps_it(
    server: Started, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Prevents a command that measures and shows nothing."""
    out = tmp_path / "out"
    load = ["--workload", "random", "--num-prompts", "4", "--random-input-len", "3"]
    code = main(["--address", server.address, *load, "--max-tokens", "4", "--out", str(out)])
    assert code == 0
    printed = capsys.readouterr().out
    assert "Successful requests:" in printed and "Inter-chunk latency (vLLM's ITL)" in printed
    assert (out / "summary.json").exists() and (out / "requests.jsonl").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--address", "127.0.0.1:1"], "no router at 127.0.0.1:1"),
        (["--workload", "gsm9k"], "workload 'gsm9k' is unknown"),
        (["--concurrency", "0"], "'0' is not an integer of at least 1"),
        (["--request-rate", "0"], "'0' is not a rate above 0"),
        (["--out", "/proc/x"], "'/proc/x' cannot be made"),
        (["--dataset-path", "/nowhere.jsonl"], "/nowhere.jsonl cannot be read"),
    ],
)
def test_bad_flags_are_named(
    server: Started, capsys: pytest.CaptureFixture[str], flags: list[str], message: str
) -> None:
    """Prevents a traceback, or a run of something else, for a typing mistake."""
    try:
        code = main(["--address", server.address, *flags])
    except SystemExit as end:
        code = int(end.code or 0)
    assert code == 2
    assert message in capsys.readouterr().err


def test_ctrl_c_is_one_line(
    server: Started,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Prevents a traceback at the end of a load that somebody has seen enough of."""

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "run", interrupted)
    load = ["--workload", "random", "--num-prompts", "1", "--random-input-len", "3"]
    assert main(["--address", server.address, *load, "--out", str(tmp_path)]) == 130
    told = f"loadtest: stopped; {tmp_path}/requests.jsonl has what was answered\n"
    assert capsys.readouterr().err == told


def test_locust_stays_out_of_this_process() -> None:
    """Prevents gevent's patches from reaching the other tests."""
    assert "locust" not in sys.modules and "gevent" not in sys.modules
