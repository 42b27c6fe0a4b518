"""A client's request in, checked work in token ids out; whatever cannot be honoured is refused."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from domino_serve.v1 import generate_pb2 as pb
from domino_serve.v1 import speculation_pb2 as spec
from domino_serve.v1.sampling_pb2 import Sampling
from router.config import RouterConfig
from router.prompt import Prompts, check_ids
from router.stop_strings import check_stop_strings
from router.tokenizer import Tokenizer
from serving.contract import mode_name
from serving.errors import BadRequest
from serving.sampling import is_greedy, requested

_MAX_STOP_IDS: Final = 1024
_SEED_BITS: Final = 63


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """A request that can run.

    draft_tokens is 0 in mode AR and at least 1 in others; sampling, with its seed, is None when
    greedy; stop_token_ids include the target's end-of-sequence ids unless they are ignored.
    """

    request_id: str
    prompt_ids: Sequence[int]
    max_tokens: int
    min_tokens: int
    stop_token_ids: frozenset[int]
    stop: tuple[str, ...]
    sampling: Sampling | None
    mode: spec.Mode.ValueType
    draft_tokens: int


class Admission:
    """The checks, against the served model's limits."""

    def __init__(
        self, config: RouterConfig, tokenizer: Tokenizer, model: pb.GetModelInfoResponse
    ) -> None:
        self._model = model
        self._prompts = Prompts(
            tokenizer,
            max_bytes=config.max_prompt_bytes,
            max_context=model.max_context,
            vocab_size=model.vocab_size,
        )

    async def admit(self, request_id: str, request: pb.GenerateRequest) -> Work:
        """Raises BadRequest naming the field. Tokenizes off the event loop."""
        stop_ids = self._stop_ids(request)
        check_stop_strings(request.stop)
        mode, draft_tokens = self._drafting(request)
        sampling = self._sampling(request)
        if request.HasField("max_tokens") and request.max_tokens < 1:
            raise BadRequest("max_tokens", f"{request.max_tokens}; must be at least 1")
        prompt_ids = await self._prompts.ids(request)
        wanted = request.max_tokens or self._model.default_max_tokens
        max_tokens = min(wanted, self._model.max_context - len(prompt_ids))
        if not 0 <= request.min_tokens <= max_tokens:
            message = f"{request.min_tokens}; must be in 0..{max_tokens}, which max_tokens allows"
            raise BadRequest("min_tokens", message)
        return Work(
            request_id=request_id,
            prompt_ids=prompt_ids,
            max_tokens=max_tokens,
            min_tokens=request.min_tokens,
            stop_token_ids=stop_ids,
            stop=tuple(request.stop),
            sampling=sampling,
            mode=mode,
            draft_tokens=draft_tokens,
        )

    def _stop_ids(self, request: pb.GenerateRequest) -> frozenset[int]:
        count = len(request.stop_token_ids)
        if count > _MAX_STOP_IDS:
            raise BadRequest("stop_token_ids", f"{count} ids, {_MAX_STOP_IDS} at most")
        check_ids("stop_token_ids", request.stop_token_ids, self._model.vocab_size)
        eos_ids = () if request.ignore_eos else self._model.eos_token_ids
        return frozenset((*request.stop_token_ids, *eos_ids))

    def _sampling(self, request: pb.GenerateRequest) -> Sampling | None:
        sampling = requested(request, self._model.default_sampling)
        if is_greedy(sampling):
            return None
        if not sampling.HasField("seed"):
            sampling.seed = secrets.randbits(_SEED_BITS)
        return sampling

    def _drafting(self, request: pb.GenerateRequest) -> tuple[spec.Mode.ValueType, int]:
        mode = request.mode or self._model.default_mode
        if mode not in self._model.modes:
            names = ", ".join(map(mode_name, self._model.modes))
            raise BadRequest(
                "mode", f"{mode_name(mode)} is not served here; this server has {names}"
            )
        limit = 0 if mode == spec.MODE_AR else self._model.max_draft_tokens
        wanted = self._model.default_draft_tokens
        if request.HasField("draft_tokens"):
            wanted = request.draft_tokens
            if not 0 <= wanted <= limit:
                message = f"{wanted}; must be in 0..{limit} in mode {mode_name(mode)}"
                raise BadRequest("draft_tokens", message)
        draft_tokens = min(wanted, limit)
        return (mode, draft_tokens) if draft_tokens else (spec.MODE_AR, 0)
