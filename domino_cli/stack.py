"""The three services on one machine: draft and verify first, the router with their addresses.

with Stack(StackConfig(target=folder, draft=folder)) as stack:
    client = Client(stack.router_address)
"""

import importlib.util
import queue
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from domino_cli.ends import Ends
from domino_cli.errors import CommandError
from domino_cli.progress import Say, clear, overwrite, say
from domino_cli.rank_processes import rank_variables
from domino_cli.service_process import Event, ServiceProcess
from domino_cli.stack_config import StackConfig, flag, flags
from serving.errors import StartError

__all__ = ["Stack", "StackConfig", "flag", "flags"]

RANK = "rank"  # in the names of processes beside `verify` or `draft` that hold a model with it
BOTH = "engines"  # the process that is verify and draft
GRACE_S = 35.0  # a little more than the services give running requests
RANKS_END_S = 5.0  # of a group that has lost one


@dataclass(frozen=True, slots=True)
class _Command:
    module: str
    arguments: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Stack:
    """Running services; entering waits until all are ready, leaving stops all of them.

    Entering raises CommandError when one ends instead of getting ready, with its last lines.
    """

    config: StackConfig
    say: Say = say
    addresses: dict[str, str] = field(default_factory=dict)
    _services: dict[str, ServiceProcess] = field(default_factory=dict)
    _commands: dict[str, _Command] = field(default_factory=dict)
    _ends: Ends = field(default_factory=Ends)
    _events: "queue.SimpleQueue[Event]" = field(default_factory=queue.SimpleQueue)

    @property
    def router_address(self) -> str:
        return self.addresses["router"]

    def __enter__(self) -> Self:
        if importlib.util.find_spec("torch") is None:
            raise CommandError(
                "starting the services needs PyTorch: `pip install 'domino-serve[serve]'`, "
                "or use running ones with --address"
            )
        try:
            self.config.check_ports()  # models may take minutes to load
        except StartError as error:
            raise CommandError(str(error)) from error
        try:
            self._start_engines()
            self._await_ready([name for name in self._services if RANK not in name])
            if both := self.addresses.pop(BOTH, None):
                self.addresses |= {"draft": both, "verify": both}
            self._start("router", _Command("router", self.config.router_flags(self.addresses)))
            self._await_ready(["router"])
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def pids(self) -> dict[str, int]:
        """Process id of each service by name."""
        return {name: service.pid for name, service in self._services.items()}

    def summary(self) -> str:
        """One line per process: name, address, process id."""
        return "\n".join(
            f"{name:<7} {self._address_of(name):<21} pid {pid}" for name, pid in self.pids().items()
        )

    def attend(self) -> None:
        """Waits until a service ends, or is ready again; one that has ended is started again.

        Raises CommandError for one that ends too often, with its last lines.
        """
        event = self._events.get()
        first = _first_of(event.service)
        if event.exit_code is None:
            self._check(event)
            self.say(f"{event.service} is ready again")
        elif self._ends.may_start_again(first):
            self.say(f"{event.service} ended with exit code {event.exit_code}; starting it again")
            self._start_again(first)
        else:
            self._check(event)

    def check(self) -> None:
        """Raises CommandError when a service has ended, with its last lines."""
        while not self._events.empty():
            self._check(self._events.get())

    def stop(self) -> None:
        """Stops callers before callees: router, verify, draft. Repeatable."""
        services = list(reversed(self._services.values()))
        try:
            for service in services:
                service.stop(GRACE_S)
        finally:  # a second Ctrl-C must leave none behind
            for service in services:
                service.kill()
        self._services.clear()

    def _start_engines(self) -> None:
        config = self.config
        if config.in_process:
            self._start(BOTH, _Command("domino_cli.one_process", config.one_process_flags()))
            return
        if config.draft is not None:
            self._start_ranks("draft", "draft_service", config.draft_flags(), config.draft_tp)
        self._start_ranks("verify", "verify_service", config.verify_flags(), config.tp)

    def _start_ranks(self, name: str, module: str, arguments: Sequence[str], count: int) -> None:
        """The first rank last, so that it is stopped before those that it tells to end."""
        ranks = rank_variables(count) if count > 1 else [{}]
        prefix = "draft-" if name == "draft" else ""
        for rank in reversed(range(len(ranks))):
            own = f"{prefix}{RANK}{rank}" if rank else name
            self._start(own, _Command(module, arguments, ranks[rank]))

    def _start(self, name: str, command: _Command) -> None:
        self._commands[name] = command
        self._services[name] = ServiceProcess(
            name,
            command.module,
            command.arguments,
            events=self._events,
            say=self.say if self.config.show_logs else _discard,
            environment=command.environment,
        )

    def _address_of(self, name: str) -> str:
        return self.addresses.get("verify" if name == BOTH else name, "")

    def _start_again(self, first: str) -> None:
        """All ranks of a service; their command lines have the place where the others look."""
        names = [name for name in self._services if _first_of(name) == first]
        for name in reversed(names):
            self._services[name].stop(RANKS_END_S)
        self._forget(names)
        for name in names:
            self._start(name, self._commands[name])

    def _forget(self, names: Sequence[str]) -> None:
        """Drops what these services said before they ended."""
        kept = [self._events.get() for _ in range(self._events.qsize())]
        for event in kept:
            if event.service not in names:
                self._events.put(event)

    def _await_ready(self, names: Sequence[str]) -> None:
        begin = time.monotonic()
        self.say(f"starting {', '.join(names)}")
        while missing := [name for name in names if name not in self.addresses]:
            elapsed = time.monotonic() - begin
            if elapsed > self.config.ready_timeout_s:
                raise CommandError(f"{', '.join(missing)}: not ready after {elapsed:.0f} s")
            overwrite(f"waiting for {', '.join(missing)}: {elapsed:.0f} s")
            try:
                event = self._events.get(timeout=1.0)
            except queue.Empty:
                continue
            self._check(event)
            self.say(f"{event.service} ready after {time.monotonic() - begin:.1f} s")
        clear()

    def _check(self, event: Event) -> None:
        if event.exit_code is not None:
            log = list(self._services[event.service].log)
            if self.config.show_logs:
                log = log[-1:]  # the others stand above
            raise CommandError(
                f"{event.service} ended with exit code {event.exit_code}; its last lines:\n"
                + "\n".join(f"  {line}" for line in log)
            )
        assert event.address is not None
        self.addresses[event.service] = event.address
        self._ends.ready(event.service)


def _first_of(name: str) -> str:
    """The process whose address stands for all ranks of a service."""
    if RANK not in name:
        return name
    return "draft" if name.startswith("draft") else "verify"


def _discard(line: str) -> None:
    """Where the log of a quiet stack goes; the last lines are kept for errors all the same."""
