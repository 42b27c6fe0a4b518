"""One request, run on one verify group after another until it is answered.

What a group has committed is the client's: another group goes on from there, with the same seed.
"""

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Callable
from contextlib import nullcontext, suppress
from typing import Final

from domino_serve.v1 import speculation_pb2 as spec
from domino_serve.v1 import verify_pb2 as pb
from router.admission import Work
from router.groups import Group, VerifyGroups
from router.history import History
from router.metrics import FAILOVERS
from router.seats import DraftSeats
from serving.errors import Draining, Overloaded, PeerUnavailable, ServingError

_log = logging.getLogger(__name__)

MAX_LOSSES: Final = 3  # of one request; it may be what breaks them
FIRST_WAIT_S: Final = 5.0  # of a request that has not begun, at most
_RETRY_S: Final = 0.2

# Delivers an event to the client; False ends the request.
Deliver = Callable[[pb.VerifyServiceGenerateResponse], Awaitable[bool]]


class Failover:
    """The groups and drafts that requests of this router run on.

    wait_s: how long a request that has begun waits for a group, when none can take it. One that
    has not waits FIRST_WAIT_S at most, and not at all where all are full.
    """

    def __init__(self, groups: VerifyGroups, seats: DraftSeats | None, wait_s: float) -> None:
        self.groups, self.seats, self.wait_s = groups, seats, wait_s

    def begin(self, time_left_s: Callable[[], float | None]) -> "Course":
        """time_left_s: until the client's deadline, None without one."""
        return Course(self, time_left_s)


class Course:
    """A request's way through the groups; it may be aborted before it is followed."""

    def __init__(self, failover: Failover, time_left_s: Callable[[], float | None]) -> None:
        self._failover, self._time_left_s = failover, time_left_s
        self._history: History  # from `follow` on
        self._refused: set[Group] = set()  # full since the last wait
        self._run: tuple[Group, str] | None = None  # where it is now, under which name
        self._aborted = self._lost = False
        self._losses = 0
        self._wait_until: float | None = None

    async def follow(self, work: Work, deliver: Deliver) -> None:
        """Returns once the last event is delivered, or `deliver` wants no more.

        Raises ServingError when no group can take it, or what a group refuses it with.
        """
        self._history = History(work)
        while not (last := self._last()):
            try:
                return await self._try(deliver)
            except (PeerUnavailable, Draining, Overloaded) as error:
                await self._go_on_after(error)
        await deliver(last)

    async def abort(self) -> None:
        """Ends the request early; its stream completes."""
        self._aborted = True
        if self._run:
            group, verify_id = self._run
            with suppress(ServingError):  # then it has ended there, or ends with its next event
                await group.client.abort(verify_id)

    def _last(self) -> pb.VerifyServiceGenerateResponse | None:
        """The last event, if the request ended between two runs."""
        if self._aborted:
            return self._history.ended(spec.FINISH_REASON_ABORT)
        return self._history.end()

    async def _try(self, deliver: Deliver) -> None:
        seats, work = self._failover.seats, self._history.work
        # Unique where several routers' requests meet, and found in its log by the client's name.
        verify_id = f"{work.request_id}-{uuid.uuid4().hex[:8]}"
        async with self._failover.groups.take(self._refused) as group:
            try:
                self._run = group, verify_id
                FAILOVERS.inc(by=self._lost)
                self._lost = False
                async with seats.hold(work, group.endpoint) if seats else nullcontext() as seat:
                    await self._run_there(group, verify_id, seat, deliver)
            except Overloaded:
                self._refused.add(group)
                raise
            except (PeerUnavailable, Draining):
                self._losses, self._lost = self._losses + 1, True
                group.lose()
                raise
            finally:
                self._run = None

    async def _run_there(
        self, group: Group, verify_id: str, seat: pb.DraftSeat | None, deliver: Deliver
    ) -> None:
        request = self._history.next_run(verify_id, seat)
        async with group.client.run(request, self._time_left_s()) as run:
            async for event in run:
                self._history.add(event)
                self._wait_until = None
                if not await deliver(event) or event.HasField("complete"):
                    return
                if self._aborted:
                    await deliver(self._history.ended(spec.FINISH_REASON_ABORT))
                    return
        raise PeerUnavailable("verify", "ended the stream without a last message")

    async def _go_on_after(self, error: ServingError) -> None:
        """Returns when another try makes sense; raises `error` when not."""
        work, now = self._history.work, time.monotonic()
        if self._losses > MAX_LOSSES:
            raise error
        if self._failover.groups.usable(self._refused):
            _log.warning("request %s goes to another group: %s", work.request_id, error)
            return
        begun, wait_s = bool(self._history.ids), self._failover.wait_s
        if isinstance(error, Overloaded) and not begun:
            raise error
        if self._wait_until is None:
            _log.warning("request %s waits for a group: %s", work.request_id, error)
            self._wait_until = now + (wait_s if begun else min(wait_s, FIRST_WAIT_S))
        if now >= self._wait_until:
            raise error
        self._refused.clear()
        await asyncio.sleep(_RETRY_S)
