"""Runs locust on a plan in a process of its own: gevent's patches never reach ours."""

import importlib.util
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.provenance import ROOT
from domino_cli.errors import CommandError
from loadtest.plan import Plan
from loadtest.prompts import requests_of
from loadtest.record import Record, read_records

LOCUSTFILE = Path(__file__).parent / "locustfile.py"
LAST_LINES = 15
STOP_S = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """Records of what was sent; `incomplete` says why that is not everything, or is None."""

    records: Sequence[Record]
    incomplete: str | None


def run(plan: Plan, records: Path, *, python: Sequence[str] = (sys.executable,)) -> Outcome:
    """Sends everything and waits for it. The plan, locust's log and the records stay in place.

    Raises CommandError when locust itself fails, or cannot be had.
    """
    command = [*python, *prepare(plan, records), *headless(plan)]
    log = records.with_suffix(".log")
    with log.open("w") as output:
        result = subprocess.run(
            command, cwd=ROOT, stdout=output, stderr=output, stdin=subprocess.DEVNULL, check=False
        )
    found = read_records(records) if records.exists() else []
    if result.returncode != 0:
        tail = "\n".join(f"  {line}" for line in log.read_text().splitlines()[-LAST_LINES:])
        raise CommandError(f"locust ended with exit code {result.returncode}:\n{tail}")
    return Outcome(records=found, incomplete=incomplete(plan, found))


def prepare(plan: Plan, records: Path) -> list[str]:
    """Writes the plan beside the records; the module and arguments of locust."""
    if importlib.util.find_spec("locust") is None:
        remedy = "`pip install -c constraints.txt -e '.[bench]'`"
        raise CommandError(f"load tests need locust: {remedy}")
    try:
        records.parent.mkdir(parents=True, exist_ok=True)
        records.unlink(missing_ok=True)
        file = records.with_suffix(".plan.json")
        plan.save(file)
    except OSError as error:
        raise CommandError(f"{records}: cannot be written: {error.strerror}") from error
    user = "OpenLoopUser" if plan.is_open_loop else "ClosedLoopUser"
    users = 1 if plan.is_open_loop else plan.concurrency
    files = ["--plan", str(file), "--records", str(records)]
    load = ["-u", str(users), "-r", str(users)]
    return ["-m", "locust", "-f", str(LOCUSTFILE), user, "--host", plan.address, *files, *load]


def headless(plan: Plan) -> list[str]:
    """Quits by itself; a failed request is a record, not locust's exit code."""
    wait_s = str(int(plan.timeout_s) + STOP_S)
    quiet = ["--headless", "--only-summary", "--loglevel", "WARNING"]
    return [*quiet, "--stop-timeout", wait_s, "--exit-code-on-error", "0"]


def incomplete(plan: Plan, records: Sequence[Record]) -> str | None:
    """Why the run is partial: failures, or requests never sent after one."""
    failed = [r.error for r in records if r.error]
    missing = 0 if plan.run_time_s else requests_of(plan.prompts) - len(records)
    if failed:
        return f"{len(failed)} failed and {missing} were not sent, first: {failed[0]}"
    return f"{missing} requests were not sent" if missing else None


def watch(plan: Plan, records: Path, port: int, say: Callable[[str], None]) -> int:
    """With locust's page, until Ctrl-C; each start there begins anew. Locust's exit code."""
    command = [sys.executable, *prepare(plan, records), "--autostart", "--web-port", str(port)]
    say(f"locust's page: http://127.0.0.1:{port} (Ctrl-C ends it); records: {records}")
    try:
        return subprocess.run(
            [*command, "--web-host", "127.0.0.1"], cwd=ROOT, check=False
        ).returncode
    except KeyboardInterrupt:
        return 0
