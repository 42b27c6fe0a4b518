"""The router's messages in, the client's dataclasses out; shared by both clients."""

from typing import Final

from domino_client.completion import (
    Chunk,
    Completion,
    FinishReason,
    ModelInfo,
    Sampling,
    Speculation,
    Timings,
)
from domino_serve.v1 import generate_pb2 as pb
from domino_serve.v1 import sampling_pb2
from domino_serve.v1 import speculation_pb2 as spec
from serving.contract import mode_name
from serving.errors import InternalError

_FINISH_REASONS: Final[dict[int, FinishReason]] = {
    spec.FINISH_REASON_STOP: "stop",
    spec.FINISH_REASON_LENGTH: "length",
    spec.FINISH_REASON_ABORT: "abort",
}


class Assembly:
    """Messages of one stream, put together; `completion` is there once the last has come."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._ids: list[int] = []
        self.completion: Completion | None = None

    def add(self, response: pb.GenerateResponse) -> Chunk | None:
        """The message's chunk; None for the last message."""
        if response.HasField("complete"):
            self.completion = self._complete(response.complete)
            return None
        self._texts.append(response.chunk.text)
        self._ids += response.chunk.token_ids
        return Chunk(text=response.chunk.text, token_ids=tuple(response.chunk.token_ids))

    def finished(self) -> Completion:
        """The completion of a stream that has been read; InternalError if it came without one."""
        if self.completion is None:
            raise InternalError("the stream ended without a completion")
        return self.completion

    def _complete(self, end: pb.GenerateComplete) -> Completion:
        if end.finish_reason not in _FINISH_REASONS:
            raise InternalError(
                f"finish reason {end.finish_reason} is unknown to this client; update domino-serve"
            )
        return Completion(
            request_id=end.request_id,
            text="".join(self._texts),
            token_ids=tuple(self._ids),
            finish_reason=_FINISH_REASONS[end.finish_reason],
            stop_token_id=end.stop_token_id if end.HasField("stop_token_id") else None,
            stop=end.stop if end.HasField("stop") else None,
            prompt_tokens=end.usage.prompt_tokens,
            completion_tokens=end.usage.completion_tokens,
            speculation=_speculation(end.speculation),
            timings=_timings(end.timings),
            sampling=_sampling(end.sampling) if end.HasField("sampling") else None,
        )


def _speculation(stats: spec.SpeculationStats) -> Speculation:
    return Speculation(
        mode=mode_name(stats.mode),
        width=stats.width,
        verify_steps=stats.verify_steps,
        plain_steps=stats.plain_steps,
        proposed_tokens=stats.proposed_tokens,
        accepted_tokens=stats.accepted_tokens,
        accepted_by_position=tuple(stats.accepted_by_position),
        step_tokens=stats.step_tokens,
    )


def _timings(timings: spec.RequestTimings) -> Timings:
    return Timings(
        queue_ns=timings.queue_ns,
        first_token_ns=timings.first_token_ns,
        total_ns=timings.total_ns,
        verify_ns=timings.verify_ns,
        draft_ns=timings.draft_ns,
    )


def _sampling(sampling: sampling_pb2.Sampling) -> Sampling:
    return Sampling(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p if sampling.HasField("top_p") else 1.0,
        min_p=sampling.min_p,
        seed=sampling.seed if sampling.HasField("seed") else None,
    )


def model_info(response: pb.GetModelInfoResponse) -> ModelInfo:
    """The router's answer, as a dataclass."""
    return ModelInfo(
        target=response.target,
        draft=response.draft,
        vocab_size=response.vocab_size,
        max_context=response.max_context,
        eos_token_ids=tuple(response.eos_token_ids),
        modes=tuple(map(mode_name, response.modes)),
        default_mode=mode_name(response.default_mode),
        max_draft_tokens=response.max_draft_tokens,
        default_draft_tokens=response.default_draft_tokens,
        block_size=response.block_size,
        dtype=response.dtype,
        target_hash=response.target_hash,
        draft_hash=response.draft_hash,
        max_sequences=response.max_sequences,
        max_requests=response.max_requests,
        default_max_tokens=response.default_max_tokens,
        default_sampling=_sampling(response.default_sampling)
        if response.HasField("default_sampling")
        else None,
        has_chat_template=response.has_chat_template,
        max_stop_strings=response.max_stop_strings,
        max_stop_chars=response.max_stop_chars,
        synthetic_acceptance=response.synthetic_acceptance,
    )
