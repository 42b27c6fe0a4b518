"""Verify groups, drafts and routers as processes with fixed ports, to be killed and restarted."""

import os
import queue
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final

from domino_cli.rank_processes import rank_variables
from domino_cli.service_process import Event, ServiceProcess
from domino_cli.stack import flags
from domino_serve.v1 import draft_pb2, draft_pb2_grpc, verify_pb2, verify_pb2_grpc
from serving.channel import channel
from serving.transport.segment import FOLDER, PREFIX
from serving.unused_port import unused_port
from tests.recorded_models import DOMINO_SHIFT, TARGET

START_S: Final = 180.0
END_S: Final = 90.0
CALL_S: Final = 30.0
_SEGMENT: Final = re.compile(f"{PREFIX}[0-9a-f]+")
MODELS: Final = {"target": TARGET, "draft": DOMINO_SHIFT, "threads": 1, "page_size": 16}
STEP_BUDGET_S: Final = 1.0
LIMITS: Final = {"draft_step_s": STEP_BUDGET_S, "draft_timeout_s": 10.0}  # the services' own


@dataclass(slots=True)
class Member:
    """One place in the cluster; its process may come and go.

    through: a module, and its arguments, that runs the service's in its place.
    """

    module: str
    options: dict[str, object]
    through: Sequence[str] = ()
    environment: dict[str, str] = field(default_factory=dict)
    port: int = field(default_factory=unused_port)
    process: ServiceProcess | None = None
    starts: int = 0
    known: set[str] = field(default_factory=set)  # segments of shared memory, of its dead too
    log: list[str] = field(default_factory=list)
    _events: "queue.SimpleQueue[Event]" = field(default_factory=queue.SimpleQueue)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def start(self) -> None:
        """Does not wait."""
        self.starts += 1
        self._events = queue.SimpleQueue()
        options = {**self.options, "port": self.port}
        command = [*self.through, self.module, *flags(options)]
        self.process = ServiceProcess(
            self.module,
            command[0],
            command[1:],
            events=self._events,
            say=self.log.append,
            environment=self.environment,
        )

    def await_ready(self) -> None:
        event = self._events.get(timeout=START_S)
        assert event.address is not None, self.log[-20:]

    def kill(self) -> None:
        """As a crash or the out-of-memory killer does it."""
        self.known |= self.segments()
        self.send(signal.SIGKILL)
        self.await_end()

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def await_end(self) -> int:
        code = self._events.get(timeout=END_S).exit_code
        assert code is not None, "it got ready instead of ending"
        assert self.process is not None
        self.process.stop(END_S)
        self.process = None
        return code

    def restart(self) -> None:
        """Drains it, as an update does, and starts the next one."""
        self.send(signal.SIGTERM)
        code = self.await_end()
        assert code == 0, self.log[-20:]
        self.start()
        self.await_ready()

    def usage(self) -> dict[str, int]:
        """Resident KiB, open files, threads and segments of shared memory it has mapped."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        found = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
        return {
            "rss_kib": int(found["VmRSS"].split()[0]),
            "files": len(os.listdir(f"/proc/{self.pid}/fd")),
            "threads": int(found["Threads"]),
            "segments": len(self.segments()),
        }

    def segments(self) -> set[str]:
        """Names that the shared memory which it has mapped had."""
        return set(_SEGMENT.findall(Path(f"/proc/{self.pid}/maps").read_text()))

    def names_left(self) -> int:
        """Segments that still have one; other services of this machine have theirs."""
        if self.process:
            self.known |= self.segments()
        return sum((FOLDER / name).exists() for name in self.known)


@dataclass(frozen=True, slots=True)
class Cluster:
    """Every router knows all verify groups and drafts; followers are ranks of the first group."""

    verifies: list[Member]
    drafts: list[Member]
    routers: list[Member]
    followers: list[Member]

    def members(self) -> list[Member]:
        return [*self.drafts, *self.followers, *self.verifies, *self.routers]

    def held(self) -> dict[str, int]:
        """What requests hold at all services that run; zeros when nothing leaks."""
        found = dict.fromkeys(("requests", "pages", "waiting_for_draft", "sessions", "seats"), 0)
        found["segments_with_names"] = sum(member.names_left() for member in self.members())
        for member in self.verifies:
            with channel(member.address) as calls:
                stub = verify_pb2_grpc.VerifyServiceStub(calls)
                verify = stub.GetLoads(verify_pb2.GetLoadsRequest(), timeout=CALL_S)
            found["requests"] += verify.running + verify.waiting
            found["pages"] += verify.kv_pages_used
            found["waiting_for_draft"] += verify.waiting_for_draft
        for member in self.drafts:
            with channel(member.address) as calls:
                request = draft_pb2.DraftServiceGetLoadsRequest()
                draft = draft_pb2_grpc.DraftServiceStub(calls).GetLoads(request, timeout=CALL_S)
            found["sessions"] += draft.sessions
            found["seats"] += draft.reserved
            found["pages"] += draft.kv_pages_used
        return found

    def leaks(self) -> dict[str, int]:
        """What is still held when nobody asks for anything any more; tickets expire after 3 s."""
        held = until(lambda: not any(self.held().values()), 40.0)
        return {} if held else {name: count for name, count in self.held().items() if count}


def until(holds: Callable[[], bool], timeout_s: float) -> bool:
    """Whether it came to hold in time."""
    end = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


@contextmanager
def cluster(
    tokenizer: Path,
    *,
    verifies: int = 2,
    drafts: int = 1,
    routers: int = 1,
    ranks: int = 1,
    ping_s: float | None = None,
    notice_s: float = 2.0,
    draft: Mapping[str, object] = MappingProxyType({}),
    measured: bool = False,
    **verify: object,
) -> Iterator[Cluster]:
    """Running services; `draft` and `verify` are options of theirs, `ranks` of the first group.

    A frozen peer is noticed after two pings, routers that end take new requests for notice_s.
    measured: drafts and groups have pages of metrics.
    """
    through = ("tests.chaos.pinging", str(ping_s)) if ping_s else ()
    # Every step drafts: a policy would soon decode plainly where drafts are poor or slow.
    options = {**MODELS, **LIMITS, "width_policy": "fixed", **verify}
    groups = _members("verify_service", options, verifies, through, measured)
    options = {**MODELS, "max_sessions": 64, "ticket_ttl_s": 3, **draft}
    seats = _members("draft_service", options, drafts, through, measured)
    front = {
        "target": tokenizer,
        "verify": ",".join(member.address for member in groups),
        "draft": ",".join(member.address for member in seats),
        "notice_s": notice_s,
        "seat_timeout_s": 5.0,
    }
    followers: list[Member] = []
    if ranks > 1:
        groups[0].environment, *others = rank_variables(ranks)
        followers = [
            Member("verify_service", groups[0].options, environment=other) for other in others
        ]
    routers_ = [Member("router", dict(front), through) for _ in range(routers)]
    members = Cluster(groups, seats, routers_, followers)
    try:
        for member in members.members():
            member.start()
        for member in (*seats, *groups, *routers_):  # a rank that follows says nothing
            member.await_ready()
        yield members
    except BaseException:
        for member in members.members():  # their last lines tell why
            print(*member.log[-20:], sep="\n", file=sys.stderr)
        raise
    finally:
        for member in members.members():
            if member.process:
                member.process.kill()
                member.process.stop(END_S)


def _members(
    module: str,
    options: Mapping[str, object],
    count: int,
    through: Sequence[str],
    measured: bool,
) -> list[Member]:
    pages = [{"metrics_port": unused_port()} if measured else {} for _ in range(count)]
    return [Member(module, {**options, **page}, through) for page in pages]
