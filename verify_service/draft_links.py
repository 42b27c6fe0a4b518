"""One link per draft service: made by the first request that needs it, replaced when it broke."""

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from domino_serve.v1 import draft_pb2
from serving.errors import DraftUnavailable, Mismatch
from serving.transport.plane import NONE, MakeMemory, Plane
from verify_service.draft_link import DraftLink, DraftUpdated, GrpcDraftLink, SeatedLink
from verify_service.turns import KEPT

MAX_PLACES = 64
RETRY_S = 1.0  # between attempts, so that requests do not queue for a draft that is away


@dataclass(frozen=True, slots=True)
class Version:
    """A draft that rows can be made for: what its services are greeted with, its projection."""

    hello: draft_pb2.HandshakeRequest
    projection: int = 0


# Takes over the projection of the draft at an address, which a handshake request led to.
Follow = Callable[[str, draft_pb2.HandshakeRequest], Version]

# Makes a link: address, greeting, time, projection, memories; raises as GrpcDraftLink does.
Connect = Callable[
    [str, draft_pb2.HandshakeRequest, float, int, Mapping[Plane, MakeMemory]], SeatedLink
]


@dataclass(slots=True)
class _Place:
    lock: threading.Lock = field(default_factory=threading.Lock)
    link: SeatedLink | None = None
    retry_at: float = 0.0


class DraftLinks:
    """Links by address; safe from any thread."""

    def __init__(
        self,
        hello: draft_pb2.HandshakeRequest,
        timeout_s: float,
        follow: Follow | None = None,
        memories: Mapping[Plane, MakeMemory] = NONE,
        connect: Connect = GrpcDraftLink,
    ) -> None:
        """`hello` goes to every draft service first. timeout_s: of each call there. memories: what
        rows may travel in."""
        self._new_link = connect
        self._timeout_s, self._follow, self._memories = timeout_s, follow, memories
        self._versions: tuple[Version, ...] = (Version(_offering(hello, memories)),)  # newest first
        self._following = threading.Lock()
        self._places: dict[str, _Place] = {}
        self._lock = threading.Lock()

    def get(self, address: str) -> SeatedLink:
        """A living link; raises DraftUnavailable, Mismatch or ContractMismatch."""
        with self._lock:
            place = self._places.get(address) or self._new_place(address)
        with place.lock:
            if place.link is None or not place.link.alive:
                place.link = self._connect(address, place)
            return place.link

    def items(self) -> list[tuple[str, DraftLink]]:
        """Every link there was so far by address, broken ones too."""
        with self._lock:
            return [(address, place.link) for address, place in self._places.items() if place.link]

    def close(self) -> None:
        """Ends all links."""
        with self._lock:
            for place in self._places.values():
                if place.link:
                    place.link.close()

    def _new_place(self, address: str) -> _Place:
        """Makes room where too many are known: callers name whatever addresses they like."""
        if len(self._places) >= MAX_PLACES:
            for known, place in list(self._places.items()):
                if not place.lock.locked() and not (place.link and place.link.alive):
                    del self._places[known]
        if len(self._places) >= MAX_PLACES:
            raise DraftUnavailable(
                f"draft service {address:.100}", f"is one too many beside {MAX_PLACES} others"
            )
        return self._places.setdefault(address, _Place())

    def _connect(self, address: str, place: _Place) -> SeatedLink:
        if time.monotonic() < place.retry_at:
            raise DraftUnavailable(f"draft service {address}", "was away a moment ago")
        try:
            return self._fitting(address)
        except DraftUpdated:
            reason = "was updated again"
        except DraftUnavailable:
            place.retry_at = time.monotonic() + RETRY_S
            raise
        except Mismatch as error:
            if len(self._versions) == 1:
                raise
            reason = f"has another draft than those updated to: {error}"  # until it is updated
        place.retry_at = time.monotonic() + RETRY_S
        raise DraftUnavailable(f"draft service {address}", reason)

    def _fitting(self, address: str) -> SeatedLink:
        """A link of the version that is there, whose projection this side has then."""
        known = self._versions
        for version in known[:-1]:
            with suppress(Mismatch):
                return self._of(address, version, known)
        return self._of(address, known[-1], known)

    def _of(self, address: str, version: Version, known: tuple[Version, ...]) -> SeatedLink:
        """A link of that version, or of one that the draft there was updated to."""
        try:
            return self._connected(address, version)
        except DraftUpdated:
            if self._follow is None:
                raise
        with self._following:
            if self._versions is known:
                self._keep(self._follow(address, version.hello))
        return self._connected(address, self._versions[0])

    def _keep(self, newest: Version) -> None:
        """From here on rows are made for this one too, and for the one before."""
        self._versions = (newest, *self._versions)[:KEPT]
        kept = {version.projection for version in self._versions}
        for _, link in self.items():
            if link.projection not in kept:
                link.close()

    def _connected(self, address: str, version: Version) -> SeatedLink:
        link = self._new_link(
            address, version.hello, self._timeout_s, version.projection, self._memories
        )
        if any(version is kept for kept in self._versions):
            return link
        link.close()
        raise DraftUpdated


def _offering(
    hello: draft_pb2.HandshakeRequest, planes: Iterable[Plane]
) -> draft_pb2.HandshakeRequest:
    offering = draft_pb2.HandshakeRequest()
    offering.CopyFrom(hello)
    offering.data_planes[:] = planes
    return offering
