"""The three services on one machine: draft and verify first, the router with their addresses.

with Stack(StackConfig(target=folder, draft=folder)) as stack:
    client = Client(stack.router_address)
"""

import importlib.util
import queue
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from domino_cli.errors import CommandError
from domino_cli.progress import Say, clear, overwrite, say
from domino_cli.rank_processes import rank_variables
from domino_cli.service_process import Event, ServiceProcess

RANK = "rank"  # in the names of processes beside `verify` or `draft` that hold a model with it
GRACE_S = 35.0  # a little more than the services give running requests


@dataclass(frozen=True, kw_only=True, slots=True)
class StackConfig:
    """What to start. None leaves a setting to the services' own default.

    draft: None runs the target alone (plain decoding, two processes).
    draft_device: the draft's, where it is another one.
    tp: processes that hold the target together, on a GPU each; the first is `verify`.
    draft_tp: the same of the draft; the first is `draft`.
    port: the router's; the other two take free ports. metrics_port: the router's, verify's and
    draft's are the next two.
    """

    target: Path
    draft: Path | None = None
    mode: str | None = None
    device: str | None = None
    draft_device: str | None = None
    dtype: str | None = None
    width: int | None = None
    width_policy: str | None = None
    threads: int | None = None
    max_sequences: int | None = None
    domino_candidates: int | str | None = None
    kv_tokens: int | None = None
    timeline: Path | None = None
    synthetic_acceptance: str | None = None
    use_generation_config: bool | None = None
    deterministic: bool | None = None
    tp: int = 1
    draft_tp: int = 1
    host: str = "127.0.0.1"
    port: int = 0
    metrics_port: int | None = None
    ready_timeout_s: float = 900.0
    show_logs: bool = True

    def metrics_flags(self, place: int) -> list[str]:
        """place: 0 the router, 1 verify, 2 draft."""
        port = None if self.metrics_port is None else self.metrics_port + place
        return flags({"metrics_port": port})

    def model_flags(self, device: str | None) -> list[str]:
        """What verify and draft have in common."""
        values = {
            "device": device,
            "dtype": self.dtype,
            "threads": self.threads,
            "kv_tokens": self.kv_tokens,
        }
        models = {"target": self.target, "draft": self.draft}
        return flags({**models, **values, "host": self.host, "port": 0})

    def verify_flags(self) -> list[str]:
        return [
            *self.model_flags(self.device),
            *self.metrics_flags(1),
            *flags(
                {
                    "width": self.width,
                    "width_policy": self.width_policy,
                    "max_sequences": self.max_sequences,
                    "deterministic": self.deterministic,
                    "timeline": self.timeline,
                    "benchmark": True if self.synthetic_acceptance else None,
                    "benchmark_synthetic_acceptance": self.synthetic_acceptance,
                }
            ),
        ]

    def draft_flags(self) -> list[str]:
        # Every running request may want a seat; the service's own default is 64.
        seats = self.max_sequences if (self.max_sequences or 0) > 64 else None
        own = flags({"domino_candidates": self.domino_candidates, "max_sessions": seats})
        model = self.model_flags(self.draft_device or self.device)
        return [*model, *self.metrics_flags(2), *own]

    def router_flags(self, addresses: dict[str, str]) -> list[str]:
        """Flags of the router, given the other services' addresses by name."""
        own = {
            "target": self.target,
            **addresses,
            "mode": self.mode,
            "use_generation_config": self.use_generation_config,
            "host": self.host,
            "port": self.port,
        }
        return [*flags(own), *self.metrics_flags(0)]


def flags(values: Mapping[str, object]) -> list[str]:
    """{"max_sequences": 8, "mode": None, "fast": True} -> ["--max-sequences", "8", "--fast"]."""
    found: list[str] = []
    for name, value in values.items():
        if value is not None:
            found += [flag(name)] if value is True else [flag(name), str(value)]
    return found


def flag(name: str) -> str:
    """An option's name on the command line."""
    return f"--{name.replace('_', '-')}"


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
            if self.config.draft is not None:
                flags_of = self.config.draft_flags()
                self._start_ranks("draft", "draft_service", flags_of, self.config.draft_tp)
            self._start_ranks(
                "verify", "verify_service", self.config.verify_flags(), self.config.tp
            )
            self._await_ready([name for name in self._services if RANK not in name])
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
            f"{name:<7} {self.addresses.get(name, ''):<21} pid {pid}"
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
