"""Locust users for the router's gRPC service; a plan in, one record a request out.

locust -f loadtest/locustfile.py ClosedLoopUser --plan PLAN.json --records OUT.jsonl -u 32 -r 32
`python -m loadtest` writes the plan and runs this, headless or with locust's page.
"""

from argparse import Namespace
from pathlib import Path
from typing import Any

import gevent
import gevent.pool
import grpc.experimental.gevent
from locust import User, constant, events, task
from locust.argument_parser import LocustArgumentParser
from locust.env import Environment
from locust.exception import StopUser
from locust.runners import LocalRunner

grpc.experimental.gevent.init_gevent()  # before any channel: its waits then yield to greenlets

from domino_client import Client  # noqa: E402
from loadtest.exchange import converse  # noqa: E402
from loadtest.feed import Feed, Item  # noqa: E402
from loadtest.plan import Plan  # noqa: E402
from loadtest.record import Record, to_line  # noqa: E402

GONE = "PEER_UNAVAILABLE"


class Run:
    """One test, from locust's start to its stop: plan, feed and the file of records."""

    def __init__(self, options: Namespace, environment: Environment) -> None:
        self.plan = Plan.load(options.plan)
        self.feed = Feed(self.plan)
        self._environment = environment
        self._file = Path(options.records).open("w", buffering=1)  # noqa: SIM115  (closed on stop)

    def answer(self, client: Client, item: Item) -> None:
        """Sends an item's turns one after another and keeps their records."""
        try:
            for record in converse(client, item, self.plan, self.feed.now):
                if record.error and record.error.startswith(GONE):
                    self.feed.stop(record.error)
                if not item.warm_up:
                    self._file.write(to_line(record))
                    self._show(record)
        finally:
            self.feed.done(item)

    def _show(self, record: Record) -> None:
        """Locust's own statistics, for its page: rounded there."""
        name = record.workload
        self._fire("E2E", name, record.end_s, record.tokens, record.error)
        if record.ok:
            self._fire("TTFT", name, record.ttft_s, 0)
            if record.tokens > record.token_counts[0]:
                rest = record.tokens - record.token_counts[0]
                self._fire("TPOT", name, (record.e2e_s - record.ttft_s) / rest, 0)

    def _fire(self, kind: str, name: str, seconds: float, size: int, error: Any = None) -> None:
        self._environment.events.request.fire(
            request_type=kind,
            name=name,
            response_time=seconds * 1e3,
            response_length=size,
            exception=error,
            context={},
        )

    def close(self) -> None:
        self._file.close()


class RouterUser(User):  # type: ignore[misc]
    """Has the run and a client; the subclasses say when requests are sent."""

    abstract = True
    wait_time = constant(0)

    def on_start(self) -> None:
        self.run_now: Run = self.environment.domino_run
        self.client = Client(self.run_now.plan.address)

    def on_stop(self) -> None:
        self.client.close()

    def end(self) -> None:
        """Stops this user; the last one ends a headless test."""
        runner = self.environment.runner
        if self.run_now.feed.finished and self.environment.parsed_options.headless:
            gevent.spawn_later(0, runner.quit)
        raise StopUser


class ClosedLoopUser(RouterUser):
    """The next request as soon as the last is answered: as many in flight as there are users."""

    @task  # type: ignore[untyped-decorator]
    def ask(self) -> None:
        item = self.run_now.feed.take()
        if item is None:
            self.end()
        else:
            self.run_now.answer(self.client, item)


class OpenLoopUser(RouterUser):
    """Sends at the plan's arrival times, whatever is still in flight."""

    fixed_count = 1

    def on_start(self) -> None:
        super().on_start()
        self.requests = gevent.pool.Group()

    @task  # type: ignore[untyped-decorator]
    def dispatch(self) -> None:
        feed = self.run_now.feed
        item = feed.take()
        if item is None:
            self.requests.join()
            return self.end()
        if item.scheduled_s is not None:
            gevent.sleep(max(0.0, item.scheduled_s - feed.now()))
        self.requests.spawn(self.run_now.answer, self.client, item)


@events.init_command_line_parser.add_listener  # type: ignore[untyped-decorator]
def add_arguments(parser: LocustArgumentParser) -> None:
    parser.add_argument("--plan", type=Path, required=True, help="plan of `python -m loadtest`")
    parser.add_argument("--records", type=Path, required=True, help="where records go, JSONL")


@events.init.add_listener  # type: ignore[untyped-decorator]
def check(environment: Environment, **_: Any) -> None:
    """One process hands out the prompts; several would each send all of them."""
    if not isinstance(environment.runner, LocalRunner):
        raise SystemExit("loadtest: --master, --worker and --processes are not for this locustfile")


@events.test_start.add_listener  # type: ignore[untyped-decorator]
def begin(environment: Environment, **_: Any) -> None:
    environment.domino_run = Run(environment.parsed_options, environment)


@events.test_stop.add_listener  # type: ignore[untyped-decorator]
def finish(environment: Environment, **_: Any) -> None:
    environment.domino_run.close()
