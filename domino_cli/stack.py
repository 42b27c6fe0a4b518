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

from domino_cli.errors import CommandError
from domino_cli.progress import Say, clear, overwrite, say
from domino_cli.rank_processes import rank_variables
from domino_cli.service_process import Event, ServiceProcess
from domino_cli.stack_config import StackConfig, flag, flags

__all__ = ["Stack", "StackConfig", "flag", "flags"]

RANK = "rank"  # in the names of processes beside `verify` or `draft` that hold a model with it
BOTH = "engines"  # the process that is verify and draft
GRACE_S = 35.0  # a little more than the services give running requests


@dataclass(slots=True)
class Stack:
    """Running services; entering waits until all are ready, leaving stops all of them.

    Entering raises CommandError when one ends instead of getting ready, with its last lines.
    """

    config: StackConfig
    say: Say = say
    addresses: dict[str, str] = field(default_factory=dict)
    _services: dict[str, ServiceProcess] = field(default_factory=dict)
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
            self._start_engines()
            self._await_ready([name for name in self._services if RANK not in name])
            if both := self.addresses.pop(BOTH, None):
                self.addresses |= {"draft": both, "verify": both}
            self._start("router", "router", self.config.router_flags(self.addresses))
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
            f"{name:<7} {self.addresses.get('verify' if name == BOTH else name, ''):<21} pid {pid}"
            for name, pid in self.pids().items()
        )

    def wait(self) -> None:
        """Returns never: raises CommandError as soon as a service ends."""
        while True:
            self._check(self._events.get())

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
            self._start(BOTH, "domino_cli.one_process", config.one_process_flags())
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
            self._start(own, module, arguments, ranks[rank])

    def _start(
        self,
        name: str,
        module: str,
        arguments: Sequence[str],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        relay = self.say if self.config.show_logs else _discard
        self._services[name] = ServiceProcess(
            name, module, arguments, events=self._events, say=relay, environment=environment
        )

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
            log = self._services[event.service].log
            raise CommandError(
                f"{event.service} ended with exit code {event.exit_code}; its last lines:\n"
                + "\n".join(f"  {line}" for line in log)
            )
        assert event.address is not None
        self.addresses[event.service] = event.address


def _discard(line: str) -> None:
    """Where the log of a quiet stack goes; the last lines are kept for errors all the same."""
