"""An engine that stands still in the middle of a request, so that no test has to be faster."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from verify_service.engine import Engine

WAIT_S: Final = 280.0  # for a block, which may load a model
STEPS: Final = 5  # a request's first tokens are sent, and drafted for
Wait = Callable[[], None]


@contextmanager
def standing_still(engine: Engine, after: int = STEPS) -> Iterator[Wait]:
    """Once it has run so many steps the engine runs no more of them until the block ends.

    For requests that the block starts. Gives what returns when the engine stands.
    """
    step, left = engine._step, after
    stands, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        assert stands.wait(WAIT_S), "nothing runs"

    def limited() -> None:
        nonlocal left
        if left == 0 and not go_on.is_set():
            stands.set()
            assert go_on.wait(WAIT_S), "the block waits for a step"
        left -= 1
        step()

    engine._step = limited  # type: ignore[method-assign]
    try:
        yield wait
    finally:
        go_on.set()
        engine._step = step  # type: ignore[method-assign]
