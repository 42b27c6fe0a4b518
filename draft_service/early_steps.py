"""Steps of one stream that begin before they are asked for, while verify's GPU still runs its pass.

Messages of draft_service.servicer in; the engine begins behind what verify's GPU will have written.
"""

import time
from typing import Final

import torch

from domino_serve.v1 import draft_pb2
from draft_service.begun import BegunBlocks
from draft_service.checks import Refusal
from draft_service.engine import DraftEngine, Stream
from draft_service.metrics import EARLY
from serving.transport.receiver import Receiver

WRITTEN_S: Final = 1.0  # from a message that says what was chosen until it is seen in memory
_LOOK_S: Final = 1e-4


class EarlySteps:
    """Used by one thread at a time. hidden, dtype: of projected rows."""

    def __init__(
        self,
        engine: DraftEngine,
        stream: Stream,
        receiver: Receiver,
        *,
        hidden: int,
        dtype: torch.dtype,
    ) -> None:
        self._engine, self._stream, self._receiver = engine, stream, receiver
        self._hidden, self._dtype = hidden, dtype
        self._begun: BegunBlocks | None = None
        self._waits = False  # the device, for a pass

    def begin(self, request: draft_pb2.StepRequest) -> bool:
        """Begins what the message tells early, where that can be; raises BadRequest."""
        begun, _ = self._taken()
        _leave(begun)
        early, most = request.early, self._engine.config.max_draft_tokens
        known = [self._stream.sessions.get(number) for number in early.sessions]
        starts = [session.kv_len for session in known if session]
        if not starts or len(starts) < len(known) or len({*early.sessions}) < len(known):
            return False
        if not (1 <= early.draft_tokens <= most and 1 <= early.width <= early.draft_tokens + 1):
            return False
        # A copy from the host would wait for the pass, if it came behind it.
        begin_at = torch.tensor(starts, dtype=torch.int32, device=self._engine.device)
        found = self._receiver.early(request, self._hidden, self._dtype)
        if found:
            self._waits = True
            self._begun = self._behind(early, *found, begin_at)
        if self._begun:
            ids = self._begun.step.ids[:, : early.draft_tokens]
            self._receiver.propose(ids.to(torch.int32).contiguous())
        return self._begun is not None

    def answer(self, request: draft_pb2.StepRequest) -> draft_pb2.StepResponse | None:
        """To a message that asks for what began; None for any other, which is to be run."""
        begun, told = self._taken()
        same = self._stream.context_id == self._engine.context_id
        if begun and told and same and begun.covers(request):
            EARLY.inc(by=len(request.steps))
            return self._engine.go_on(self._stream, request, begun)()
        _leave(begun)
        if begun and not request.HasField("rows") and any(s.num_rows for s in request.steps):
            return _refusal(request)
        return None

    def _behind(
        self,
        early: draft_pb2.EarlyStep,
        chosen: torch.Tensor,
        rows: torch.Tensor,
        starts: torch.Tensor,
    ) -> BegunBlocks | None:
        """Positions are the draft's own, ids and counts in range: nothing of it is believed."""
        from domino_kernels.gpu.hand_over import Verified  # needs Triton

        width = int(early.width)
        chosen[:, 0].clamp_(-1, width - 1)
        chosen[:, 1].clamp_(0, self._engine.config.vocab_size - 1)
        column = torch.arange(width, dtype=torch.int32, device=starts.device)
        verified = Verified(
            out=chosen,
            positions=(starts[:, None] + column).flatten(),
            slots=torch.arange(len(rows), dtype=torch.int32, device=rows.device),
            rows=rows,
        )
        sessions = dict.fromkeys(early.sessions, width)
        return self._engine.begin(self._stream, sessions, verified, early.draft_tokens)

    def _taken(self) -> tuple[BegunBlocks | None, bool]:
        """What began, and whether its pass was told; the device waits for none from here on."""
        begun, waits, self._begun, self._waits = self._begun, self._waits, None, False
        until = time.monotonic() + WRITTEN_S
        while waits and not self._receiver.is_told:
            if time.monotonic() > until:
                self._receiver.let_go()
                return begun, False
            time.sleep(_LOOK_S)
        return begun, True


def _leave(begun: BegunBlocks | None) -> None:
    """Until its device is done: it reads what the next step writes."""
    if begun:
        _ = begun.step.proposals


def _refusal(request: draft_pb2.StepRequest) -> draft_pb2.StepResponse:
    """To rows that the message left to what began, which turned out to be something else."""
    response = draft_pb2.StepResponse(sequence_number=request.sequence_number)
    for step in request.steps:
        gap = Refusal(draft_pb2.SESSION_ERROR_REASON_CONTEXT_GAP, "rows", step.num_rows)
        response.results.add(session=step.session, step=step.step, error=gap.message())
    return response
