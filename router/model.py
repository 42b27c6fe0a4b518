"""What the verify service has loaded in; what this router serves out, as GetModelInfo tells it."""

import logging

from domino_serve.v1 import generate_pb2 as pb
from domino_serve.v1 import speculation_pb2 as spec
from domino_serve.v1 import verify_pb2
from router.config import RouterConfig
from router.generation_config import default_sampling
from router.stop_strings import MAX_CHARS, MAX_STRINGS
from router.tokenizer import Tokenizer
from serving.contract import MODES, mode_name
from serving.errors import Mismatch, StartError

_log = logging.getLogger(__name__)


def served_model(
    target: verify_pb2.GetTargetResponse, tokenizer: Tokenizer, config: RouterConfig
) -> pb.GetModelInfoResponse:
    """Limits and defaults of requests; raises when tokenizer or mode do not fit the target."""
    if tokenizer.num_ids > target.target.vocab_size:
        expected = f"at most {target.target.vocab_size} ids, as {target.target.name} has"
        raise Mismatch(f"tokenizer of {config.target}", expected, tokenizer.num_ids)
    modes = _modes(target, config)
    default = MODES[config.mode] if config.mode else modes[-1]
    if default not in modes:
        names = ", ".join(map(mode_name, modes))
        raise StartError(f"mode {mode_name(default)}: the loaded models can run {names} only")
    speculative = len(modes) > 1
    draft = target.draft if speculative else verify_pb2.DraftFingerprint()
    return pb.GetModelInfoResponse(
        target=target.target.name,
        draft=draft.name,
        vocab_size=target.target.vocab_size,
        max_context=target.max_context,
        eos_token_ids=target.eos_token_ids,
        modes=modes,
        default_mode=default,
        max_draft_tokens=draft.block_size - 1 if speculative else 0,
        default_draft_tokens=target.default_draft_tokens if speculative else 0,
        block_size=draft.block_size,
        dtype=target.target.dtype,
        target_hash=target.target.content_hash,
        draft_hash=draft.content_hash,
        max_sequences=target.max_sequences,
        max_requests=config.max_requests,
        default_max_tokens=config.default_max_tokens,
        default_sampling=default_sampling(config.target) if config.use_generation_config else None,
        has_chat_template=tokenizer.has_chat_template,
        max_stop_strings=MAX_STRINGS,
        max_stop_chars=MAX_CHARS,
    )


def _modes(target: verify_pb2.GetTargetResponse, config: RouterConfig) -> list[spec.Mode.ValueType]:
    """Weakest first."""
    if config.draft is None:
        return [spec.MODE_AR]
    if not target.HasField("draft"):
        _log.warning("the verify service at %s has no draft loaded: plain only", config.verify)
        return [spec.MODE_AR]
    domino = [spec.MODE_DOMINO] if target.draft.has_domino_head else []
    return [spec.MODE_AR, spec.MODE_DFLASH, *domino]
