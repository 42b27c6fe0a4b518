"""A verify service's link to a draft engine in its own process: the in-process data plane."""

import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor

from domino_serve.v1 import draft_pb2
from domino_serve.v1 import speculation_pb2 as spec
from draft_service.begun import BegunBlocks
from draft_service.engine import DraftEngine, Stream
from draft_service.executor import Begun
from draft_service.handshake import answer
from draft_service.load import Loaded
from serving.errors import DraftUnavailable
from serving.tensors import DTYPES
from serving.transport.plane import IN_PROCESS
from verify_service.draft_link import DraftUpdated

if TYPE_CHECKING:
    from domino_kernels.gpu.hand_over import Verified


class LocalDraftLink:
    """Rows pass by reference, and `receive` runs the draft's step in the thread that asks.

    On the target's GPU a step may `begin` before it is asked for. The lock keeps a step from
    running while another thread ends its sessions.
    """

    plane = IN_PROCESS

    def __init__(
        self, engine: DraftEngine, max_rows: int, *, projection: int = 0, incarnation: str = ""
    ) -> None:
        self.max_rows, self.context_id, self.late_answers = max_rows, engine.context_id, 0
        self.projection, self.incarnation = projection, incarnation
        self.engine, self._stream = engine, Stream()
        self._open, self._lock = True, threading.Lock()
        self._answer: Callable[[], draft_pb2.StepResponse] | None = None
        self._begun: BegunBlocks | None = None

    @classmethod
    def greeting(
        cls, draft: Loaded, hello: draft_pb2.HandshakeRequest, projection: int = 0
    ) -> Self:
        """After the handshake that two services would make; raises Mismatch or DraftUpdated."""
        target = hello.target
        found = answer(draft, hello, target.hidden_size, DTYPES[target.dtype])
        if found.draft.content_hash != hello.draft.content_hash:
            raise DraftUpdated
        return cls(
            draft.engine, found.max_rows, projection=projection, incarnation=found.incarnation
        )

    @property
    def alive(self) -> bool:
        """Until it is closed, or other weights are served."""
        return self._open and self.context_id == self.engine.context_id

    def begin(self, sessions: Mapping[int, int], verified: "Verified", count: int) -> Begun | None:
        """As verify_service.early_drafts.EarlyLink."""
        with self._lock:
            self._begun = None
            if self.alive:
                self._begun = self.engine.begin(self._stream, sessions, verified, count)
            return self._begun.step if self._begun else None

    @property
    def device(self) -> torch.device:
        """The draft's."""
        return self.engine.device

    def tell(
        self, request: draft_pb2.StepRequest, rows: Tensor | None
    ) -> draft_pb2.StepResponse | None:
        """As verify_service.early_rows.RowsLink."""
        with self._lock:
            if not self.alive:
                return None
            return self.engine.step(self._stream, request, rows, unseen=True)

    def go_on(self, request: draft_pb2.StepRequest) -> Begun | None:
        """As verify_service.early_drafts.EarlyLink."""
        begun, self._begun = self._begun, None
        with self._lock:
            if not self.alive or not begun or not begun.covers(request):
                return None
            self._answer = self.engine.go_on(self._stream, request, begun)
            return begun.step

    def send(self, request: draft_pb2.StepRequest, rows: Tensor | None) -> None:
        self._answer = partial(self.engine.step, self._stream, request, rows)

    def receive(self, timeout_s: float) -> draft_pb2.StepResponse:
        assert self._answer is not None, "receive follows send"
        with self._lock:
            if not self.alive:
                raise DraftUnavailable("draft service of this process", "was closed or updated")
            return self._answer()

    def reserve(self, mode: spec.Mode.ValueType, max_positions: int) -> str:
        """A ticket for a session; raises Overloaded or another refusal."""
        return self.engine.reserve(mode, max_positions)

    def close(self) -> None:
        with self._lock:
            self._open = False
            self.engine.close(self._stream)
