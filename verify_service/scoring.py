"""Scoring: blocks of given ids verified after a prompt, nothing committed.

Runs through the engine as any request: the prompt but its last id is prefilled, then each block is
verified in a step of its own, over the KV of the block before.
"""

import queue
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from domino_serve.v1 import speculation_pb2 as spec
from domino_serve.v1 import verify_pb2
from serving.errors import Draining, ServingError
from verify_service.accept import accept
from verify_service.checks import sampling_params
from verify_service.sequence import Chosen, Event, Request, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRequest(Request):
    """prompt_ids is the prompt without its last id, which is `current`; at least one block."""

    current: int
    blocks: list[list[int]]
    logprobs: bool

    def start(self) -> Sequence:
        return ScoreSequence(self)


class ScoreSequence(Sequence):
    """Emits one BlockScore a step and has no tokens of its own."""

    __slots__ = ("num_scored", "score")

    def __init__(self, score: ScoreRequest) -> None:
        Sequence.__init__(self, score)
        self.score, self.num_scored = score, 0

    @property
    def wants_logprobs(self) -> bool:
        return self.score.logprobs and not self.in_prefill

    @property
    def sized_by(self) -> str:
        return "blocks"

    @property
    def capacity(self) -> int:
        return self.prompt_len + 1 + max(map(len, self.score.blocks))

    def next_ids(self) -> list[int]:
        return [self.score.current, *self.score.blocks[self.num_scored]]

    def commit(self, ids: list[int], chosen: Chosen) -> spec.FinishReason.ValueType:
        if self.in_prefill:
            self.kv_len += len(ids)
            return spec.FINISH_REASON_UNSPECIFIED
        self.num_scored += 1
        self.timings.total_ns = self.elapsed_ns()
        self.request.emit(
            verify_pb2.BlockScore(
                accepted_tokens=accept(ids[1:], chosen.ids),
                choices=chosen.ids,
                choice_logprobs=chosen.logprobs,
                id_logprobs=chosen.id_logprobs,
            )
        )
        last = self.num_scored == len(self.score.blocks)
        return spec.FINISH_REASON_LENGTH if last else spec.FINISH_REASON_UNSPECIFIED


def score_request(request: verify_pb2.ScoreRequest, emit: Callable[[Event], None]) -> ScoreRequest:
    """A checked message as the engine takes it, under a name of its own."""
    *prompt, current = request.prompt_ids
    return ScoreRequest(
        request_id=f"score-{uuid.uuid4().hex}",
        prompt_ids=prompt,
        current=current,
        blocks=[list(block.ids) for block in request.blocks],
        logprobs=request.logprobs,
        sampling=sampling_params(request.sampling),
        max_tokens=0,
        stop_ids=frozenset(),
        emit=emit,
        keeps_rows=False,
    )


def collect_scores(events: "queue.SimpleQueue[Event]") -> verify_pb2.ScoreResponse:
    """Waits for all blocks; raises the error the request ended with."""
    response = verify_pb2.ScoreResponse()
    while True:
        event = events.get()
        if isinstance(event, ServingError):
            raise event
        if isinstance(event, verify_pb2.BlockScore):
            response.scores.append(event)
        elif isinstance(event, verify_pb2.VerifyComplete):
            if event.finish_reason == spec.FINISH_REASON_ABORT:
                raise Draining
            response.timings.CopyFrom(event.timings)
            return response
