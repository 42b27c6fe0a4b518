"""The verify groups a request can run on: found, checked, used while they answer, left when not."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final, Self

import grpc

from domino_serve.v1 import verify_pb2 as pb
from router.discovery import Discovery
from router.endpoint import Endpoint
from router.verify import VerifyClient
from serving.channel import aio_channel
from serving.errors import ContractMismatch, Mismatch, PeerUnavailable, ServingError, StartError
from serving.fingerprint import require_equal

_log = logging.getLogger(__name__)

_PROBE_S: Final = 0.5
_PROGRESS_S: Final = 5.0


@dataclass(slots=True, eq=False)
class Group:
    """One verify service; `running` are this router's requests there."""

    endpoint: Endpoint
    channel: grpc.aio.Channel
    client: VerifyClient
    running: int = 0
    answers: bool = False
    lost: asyncio.Event = field(default_factory=asyncio.Event)

    @classmethod
    def at(cls, endpoint: Endpoint) -> Self:
        channel = aio_channel(endpoint.address)
        return cls(endpoint=endpoint, channel=channel, client=VerifyClient(channel))

    @property
    def address(self) -> str:
        return self.endpoint.address

    def lose(self) -> None:
        """It broke a call: not used until it has answered again."""
        self.answers = False
        self.lost.set()


class VerifyGroups:
    """Groups that hold one and the same target. An async context manager."""

    def __init__(self, discovery: Discovery, drafts: Callable[[], Collection[str]] = tuple) -> None:
        """drafts: addresses of the draft services that each group is to shake hands with."""
        self._discovery, self._drafts = discovery, drafts
        self._groups: dict[str, Group] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._reasons: dict[str, str] = {}
        self._target: asyncio.Future[pb.GetTargetResponse] = asyncio.Future()

    async def __aenter__(self) -> Self:
        self._watcher = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        tasks = [self._watcher, *self._tasks.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for group in self._groups.values():
            await group.channel.close()

    async def target(self, timeout_s: float) -> pb.GetTargetResponse:
        """What the first group that answers has loaded; the others must have the same.

        Raises StartError after timeout_s, Mismatch when it does not belong to a draft.
        """
        await asyncio.wait({self._target}, timeout=timeout_s)
        if not self._target.done():
            known = ", ".join(self._groups) or "an unknown address"
            raise StartError(
                f"the verify service at {known} did not answer within {timeout_s:g} s "
                f"({self._why()}); start it first or raise --startup-timeout-s"
            )
        return self._target.result()

    def usable(self, refused: Collection[Group] = ()) -> list[Group]:
        """Groups that answer, but `refused`."""
        return [g for g in self._groups.values() if g.answers and g not in refused]

    @asynccontextmanager
    async def take(self, refused: Collection[Group] = ()) -> AsyncIterator[Group]:
        """The least loaded group but `refused`; raises PeerUnavailable when none answers."""
        usable = self.usable(refused)
        if not usable:
            raise PeerUnavailable("verify", self._why())
        group = min(usable, key=lambda group: group.running)
        group.running += 1
        try:
            yield group
        finally:
            group.running -= 1
            await self._close_if_gone(group)

    async def _watch(self) -> None:
        try:
            async for endpoints in self._discovery.watch():
                await self._change({endpoint.address: endpoint for endpoint in endpoints})
        except Exception as error:
            _log.exception("discovery of verify services ended; the last ones stay")
            if not self._target.done():
                self._target.set_exception(error)

    async def _change(self, endpoints: Mapping[str, Endpoint]) -> None:
        for address in endpoints.keys() - self._groups.keys():
            group = self._groups[address] = Group.at(endpoints[address])
            self._tasks[address] = asyncio.create_task(self._keep(group))
        for address in self._groups.keys() - endpoints.keys():
            self._tasks.pop(address).cancel()
            self._reasons.pop(address, None)
            group = self._groups.pop(address)
            group.answers = False  # its requests end where they are
            await self._close_if_gone(group)

    async def _close_if_gone(self, group: Group) -> None:
        if not group.running and self._groups.get(group.address) is not group:
            await group.channel.close()

    async def _keep(self, group: Group) -> None:
        """Asks a group until it answers, and again whenever it was lost."""
        while True:
            await self._until_it_fits(group)
            group.lost.clear()
            group.answers = True
            self._reasons.pop(group.address, None)
            await group.lost.wait()
            _log.warning("verify service %s is lost; asking until it answers", group.address)

    async def _until_it_fits(self, group: Group) -> None:
        tell_at = 0.0
        while True:
            try:
                target = await group.client.target(_PROGRESS_S)
                if self._target.done():
                    _require_same(self._target.result(), target)
                await self._meet_drafts(group, target)
                if not self._target.done():
                    self._target.set_result(target)
                # Another group may have become the first one meanwhile.
                _require_same(self._target.result(), target)
                return
            except ServingError as error:
                self._reasons[group.address] = str(error)
                if time.monotonic() >= tell_at:
                    tell_at = time.monotonic() + _PROGRESS_S
                    where = group.address
                    _log.info("waiting for the verify service at %s: %s", where, error)
            await asyncio.sleep(_PROBE_S)

    async def _meet_drafts(self, group: Group, target: pb.GetTargetResponse) -> None:
        """All at once: verify waits for each that is away."""
        addresses = self._drafts() if target.HasField("draft") else ()
        await asyncio.gather(*(self._meet_draft(group, address) for address in addresses))

    async def _meet_draft(self, group: Group, address: str) -> None:
        """A pair that does not belong together ends the start; later it only costs speed."""
        try:
            await group.client.connect_draft(address, _PROGRESS_S)
        except (Mismatch, ContractMismatch) as error:
            _log.error("verify %s and draft %s: %s", group.address, address, error)
            if not self._target.done():
                self._target.set_exception(error)
        except ServingError as error:
            _log.warning("verify %s and draft %s: %s", group.address, address, error)

    def _why(self) -> str:
        """Why no group can be used."""
        reasons = [f"{address}: {reason}" for address, reason in self._reasons.items()]
        return "; ".join(reasons) or "no verify service is known"


def _require_same(expected: pb.GetTargetResponse, actual: pb.GetTargetResponse) -> None:
    """Raises Mismatch: a request that moves between groups would change its answer, or fail."""
    require_equal("target", expected.target, actual.target)
    remedy = "start all verify services with the same models and limits"
    for name, mine, theirs in (
        ("draft", expected.HasField("draft"), actual.HasField("draft")),
        ("draft.block_size", expected.draft.block_size, actual.draft.block_size),
        ("synthetic_acceptance", expected.synthetic_acceptance, actual.synthetic_acceptance),
    ):
        if mine != theirs:
            raise Mismatch(name, mine, theirs, remedy)
    if actual.max_context < expected.max_context:
        raise Mismatch("max_context", expected.max_context, actual.max_context, remedy)
