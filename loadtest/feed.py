"""Hands prompts to users: warm-ups first, then, from one instant on, what is measured."""

import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from loadtest.plan import Plan
from loadtest.prompts import LoadPrompt


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """A prompt to send. scheduled_s: when, since the measurement began; None: at once."""

    prompt: LoadPrompt
    warm_up: bool
    scheduled_s: float | None = None


class Feed:
    """Safe from any thread. The measurement begins when the last warm-up has ended.

    Locust's patches turn the threads and conditions here into greenlets'.
    """

    def __init__(self, plan: Plan, clock: Callable[[], float] = time.perf_counter) -> None:
        self._plan, self._clock = plan, clock
        self._warm_ups = iter([_warm_up(plan, i) for i in range(plan.warm_ups)])
        self._measured = _measured(plan)
        self._warming = plan.warm_ups
        self._changed = threading.Condition()
        self._began: float | None = None
        self.in_flight = 0
        self.stopped: str | None = None
        self.exhausted = False

    def take(self) -> Item | None:
        """The next prompt, None when there is no more; waits while warm-ups are running."""
        with self._changed:
            item = next(self._warm_ups, None)
            if item is None:
                self._changed.wait_for(lambda: self._warming == 0 or self.stopped)
                item = self._next_measured()
            self.in_flight += item is not None
            return item

    def done(self, item: Item) -> None:
        """The prompt's last answer has come, or has failed."""
        with self._changed:
            self.in_flight -= 1
            self._warming -= item.warm_up
            self._changed.notify_all()

    def stop(self, reason: str) -> None:
        """Hands out nothing more: the server is gone."""
        with self._changed:
            self.stopped = self.stopped or reason
            self._changed.notify_all()

    def now(self) -> float:
        """Seconds since the measurement began; negative before."""
        return self._clock() - self._began if self._began is not None else -1.0

    @property
    def finished(self) -> bool:
        """Nothing more to send, and everything answered."""
        return self.exhausted and not self.in_flight

    def _next_measured(self) -> Item | None:
        if self._began is None:
            self._began = self._clock()
        limit = self._plan.run_time_s
        over = limit is not None and self.now() >= limit
        item = None if over or self.stopped else next(self._measured, None)
        self.exhausted = self.exhausted or item is None
        return item


def _warm_up(plan: Plan, number: int) -> Item:
    return Item(prompt=plan.prompts[number % len(plan.prompts)], warm_up=True)


def _measured(plan: Plan) -> Iterator[Item]:
    """Each prompt once; with a run time, over and over again."""
    prompts = itertools.cycle(plan.prompts) if plan.run_time_s else iter(plan.prompts)
    if plan.request_rate is None:
        return (Item(prompt=prompt, warm_up=False) for prompt in prompts)
    times = itertools.accumulate(_gaps(plan.request_rate, plan.seed), initial=0.0)
    return (
        Item(prompt=prompt, warm_up=False, scheduled_s=at)
        for prompt, at in zip(prompts, times, strict=False)
    )


def _gaps(rate: float, seed: int) -> Iterator[float]:
    """Seconds between arrivals of a Poisson process, as both reference programs draw them."""
    generator = random.Random(seed)
    while True:
        yield generator.expovariate(rate)
