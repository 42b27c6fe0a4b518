"""Finds seats for requests that lost their draft, or never had one: half-open, with growing pauses.

verify_service.drafting reports them; the new session is sent every committed row again, which pages
keep beside the KV, so that the draft's state is what it was; for other weights they are made again.
Until then they decode plainly.
"""

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from serving.errors import BadRequest, Overloaded, ServingError
from serving.log import about
from verify_service.draft_link import SeatedLink
from verify_service.draft_links import DraftLinks
from verify_service.engine import Engine
from verify_service.metrics import DRAFT_RECOVERED, WAITING_FOR_DRAFT
from verify_service.sequence import DraftPlan, Sequence

FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 5.0
SHORT_S: Final = 10.0  # a draft that is lost again so soon gets a longer pause

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Pause:
    """When a draft is asked again."""

    length_s: float = FIRST_PAUSE_S
    until: float = 0.0
    recovered_at: float = -SHORT_S

    def lengthen(self, now: float) -> None:
        self.until = now + self.length_s
        self.length_s = min(2 * self.length_s, LONGEST_PAUSE_S)


class DraftRecovery:
    """Has a thread while somebody waits; `want` is safe from any thread."""

    def __init__(
        self, engine: Engine, links: DraftLinks, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._engine, self._links, self._sleep = engine, links, sleep
        self._lock = threading.Lock()
        self._waiting: set[Sequence] = set()
        self._pauses: dict[str, _Pause] = defaultdict(_Pause)
        self._running = False
        WAITING_FOR_DRAFT.watch(lambda: len(self._waiting))

    def __len__(self) -> int:
        """Requests that run plain and wait for a seat."""
        return len(self._waiting)

    def want(self, sequence: Sequence) -> None:
        """A request that is to be drafted for as soon as its draft has a seat."""
        wish, now = sequence.request.wish, time.monotonic()
        assert wish is not None, "nothing to look for"
        with self._lock:
            pause = self._pauses[wish.address]
            if now >= pause.until:
                if now - pause.recovered_at > SHORT_S:
                    pause.length_s = FIRST_PAUSE_S
                pause.lengthen(now)
            self._waiting.add(sequence)
            if not self._running:
                self._running = True
                threading.Thread(target=self._run, name="draft-recovery", daemon=True).start()

    def _run(self) -> None:
        while members := self._members():
            for address, sequences in members.items():
                if time.monotonic() >= self._pauses[address].until:
                    self._try(address, sequences)
            self._sleep(FIRST_PAUSE_S)

    def _members(self) -> dict[str, list[Sequence]]:
        """Who still waits, by address; empty when the thread is to end."""
        found: dict[str, list[Sequence]] = defaultdict(list)
        with self._lock:
            self._waiting = set(filter(self._engine.is_live, self._waiting))
            for sequence in self._waiting:
                assert sequence.request.wish is not None
                found[sequence.request.wish.address].append(sequence)
            self._running = bool(found)
            for address in self._pauses.keys() - found.keys():
                if time.monotonic() - self._pauses[address].until > SHORT_S:
                    del self._pauses[address]
        return found

    def _try(self, address: str, sequences: list[Sequence]) -> None:
        pause = self._pauses[address]
        try:
            link = self._links.get(address)
            for sequence in sorted(sequences, key=lambda s: s.arrived_ns):
                plan = self._plan(link, sequence)
                self._forget(sequence)
                if plan:
                    self._engine.commands.put(partial(self._begin, sequence, plan))
                    pause.recovered_at = time.monotonic()
                    DRAFT_RECOVERED.inc()
                    name = sequence.request.request_id
                    log.info("request %s has a draft again", name, extra=about(name))
        except ServingError as error:
            pause.lengthen(time.monotonic())
            if not isinstance(error, Overloaded):
                log.warning("%d requests wait for a draft: %s", len(sequences), error)
        except Exception:  # a fault of our own costs speed only
            pause.lengthen(time.monotonic())
            log.exception("no seat could be looked for; %d requests wait", len(sequences))

    def _plan(self, link: SeatedLink, sequence: Sequence) -> DraftPlan | None:
        """Its place at the draft; None where it stays plain for good."""
        wish, name = sequence.request.wish, sequence.request.request_id
        assert wish is not None
        if not (sequence.suits(link.projection) or sequence.pays_anew):
            return None  # another draft is there now
        try:
            ticket = link.reserve(wish.mode, sequence.capacity)
        except BadRequest as error:
            log.warning("request %s stays plain: %s", name, error, extra=about(name))
            return None
        return DraftPlan(link=link, ticket=ticket, mode=wish.mode, draft_tokens=wish.draft_tokens)

    def _forget(self, sequence: Sequence) -> None:
        with self._lock:
            self._waiting.discard(sequence)

    def _begin(self, sequence: Sequence, plan: DraftPlan) -> None:
        """In the engine's thread."""
        if self._engine.is_live(sequence):
            if not sequence.suits(plan.link.projection):
                self._engine.scheduler.run_anew(sequence)
            self._engine.drafting.begin(sequence, plan)
