"""What other threads ask of the engine's: run there between two steps, in the order asked."""

import queue
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")
Command = Callable[[], None]

CALL_S = 60.0  # a call waits no longer, should the engine have ended


class Commands:
    """Everything but `take` is for other threads."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Command | None] = queue.SimpleQueue()

    def put(self, command: Command) -> None:
        """Does not wait."""
        self._queue.put(command)

    def call(self, job: Callable[[], T]) -> T:
        """What the job returns or raises; TimeoutError where nobody takes it."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(job())
            except Exception as error:
                future.set_exception(error)

        self.put(run)
        return future.result(CALL_S)

    def end(self) -> None:
        """`take` gives None once all earlier commands were taken."""
        self._queue.put(None)

    def take(self, *, wait: bool, timeout_s: float | None) -> Command | None:
        """The next command, None at the end; raises queue.Empty where there is none in time."""
        return self._queue.get(block=wait, timeout=timeout_s)
