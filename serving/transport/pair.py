"""Two ranks, one of which sends bytes to the other: how rows travel where no memory is shared.

Kinds: serving.transport.nccl_pair between GPUs, serving.transport.tcp_pair between CPUs.
"""

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class PairLost(RuntimeError):
    """The other side is gone, late, or was never there; the pair is of no use any more."""


class Pair(Protocol):
    """One rank. Buffers are uint8, on the rank's device; `until` is on the monotonic clock.

    Every call but `close` is one thread's.
    """

    def join(self, until: float) -> None:
        """Returns when both ranks are there; raises PairLost."""
        ...

    def mark(self) -> "torch.cuda.Event | None":
        """What the device's current stream has been given so far, for `send`; any thread's."""
        ...

    def send(self, buffer: "Tensor", after: "torch.cuda.Event | None", until: float) -> None:
        """Returns when the other side has it, for which no stream of the caller waits.

        Raises PairLost.
        """
        ...

    def receive(self, buffer: "Tensor", until: float) -> None:
        """Fills the whole buffer: when this returns the device can use it. Raises PairLost.

        No stream of the caller waits for the other side.
        """
        ...

    def close(self) -> None:
        """From any thread; whoever waits here gets PairLost."""
        ...
