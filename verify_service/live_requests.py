"""The requests that wait or run, by id: who may join, who is still there, how they end."""

import threading
from collections.abc import Callable
from typing import TypeAlias

from domino_serve.v1 import speculation_pb2 as spec
from serving.errors import BadRequest, Draining, Overloaded, ServingError
from verify_service.sequence import Sequence

Outcome: TypeAlias = "spec.FinishReason.ValueType | ServingError"


class LiveRequests:
    """Safe from any thread. most: at a time."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._sequences: dict[str, Sequence] = {}
        self._lock = threading.Lock()
        self._ended = False

    def __len__(self) -> int:
        return len(self._sequences)

    def add(self, sequence: Sequence, then: Callable[[], None]) -> None:
        """Calls `then` before anybody can find the request.

        Raises BadRequest (the id runs already), Overloaded or, after `end`, Draining.
        """
        name = sequence.request.request_id
        with self._lock:
            if self._ended:
                raise Draining
            if name in self._sequences:
                raise BadRequest("request_id", f"{name!r} is running already")
            if len(self._sequences) >= self._most:
                count = len(self._sequences)
                raise Overloaded(f"{count} requests are running and waiting; retry later")
            self._sequences[name] = sequence
            then()

    def find(self, request_id: str) -> Sequence | None:
        """None where no such request waits or runs."""
        with self._lock:
            return self._sequences.get(request_id)

    def has(self, sequence: Sequence) -> bool:
        """Whether this very request, not a later one of its id, waits or runs."""
        return self.find(sequence.request.request_id) is sequence

    def remove(self, sequence: Sequence) -> bool:
        """False where it was removed before."""
        name = sequence.request.request_id
        with self._lock:
            if self._sequences.get(name) is not sequence:
                return False
            del self._sequences[name]
            return True

    def end(self) -> list[Sequence]:
        """All that are left; none is added from now on."""
        with self._lock:
            self._ended = True
            left = list(self._sequences.values())
            self._sequences.clear()
            return left


def tell(sequence: Sequence, outcome: Outcome) -> None:
    """The request's last event."""
    sequence.send()
    last = outcome if isinstance(outcome, ServingError) else sequence.complete(outcome)
    sequence.request.emit(last)
