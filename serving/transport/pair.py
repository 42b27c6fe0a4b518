"""Two ranks, one of which sends bytes to the other: how rows travel where no memory is shared.

Kinds: serving.transport.nccl_pair between GPUs, serving.transport.tcp_pair between CPUs.
"""

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor


class PairLost(RuntimeError):
    """The other side is gone, late, or was never there; the pair is of no use any more."""


class Pair(Protocol):
    """One rank. Buffers are uint8, on the rank's device; `until` is on the monotonic clock.

    Every call but `close` and `begin` is one thread's.
    """

    def join(self, until: float) -> None:
        """Returns when both ranks are there; raises PairLost."""
        ...

    def begin(self, buffer: "Tensor") -> None:
        """A GPU sends it behind what its current stream has been given so far; nothing waits.

        One thread at a time; raises PairLost.
        """
        ...

    def finish(self, buffer: "Tensor", until: float) -> None:
        """After `begin`, in the same order: returns when the other side has it; raises PairLost."""
        ...

    def receive(self, buffer: "Tensor", until: float) -> None:
        """Fills the whole buffer: when this returns the device can use it. Raises PairLost.

        No stream of the caller waits for the other side.
        """
        ...

    def close(self) -> None:
        """From any thread; whoever waits here gets PairLost."""
        ...
