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
from serving.fingerprint import tokenizer_hash

_log = logging.getLogger(__name__)


def served_model(
    target: verify_pb2.GetTargetResponse, tokenizer: Tokenizer, config: RouterConfig
) -> pb.GetModelInfoResponse:
    """Limits and defaults of requests; raises when tokenizer or mode do not fit the target."""
    _check_tokenizer(target.target, tokenizer, config)
    modes = _modes(target, config)
    default = MODES[config.mode] if config.mode else modes[-1]
    if default not in modes:
        names = ", ".join(map(mode_name, modes))
        raise StartError(f"mode {mode_name(default)}: the loaded models can run {names} only")
    if target.synthetic_acceptance:
        _log.warning(
            "SYNTHETIC ACCEPTANCE %s at %s: benchmark only, answers are NOT the target's",
            target.synthetic_acceptance,
            config.verify,
        )
    speculative = len(modes) > 1
    default_tokens = target.default_draft_tokens
    draft = target.draft if speculative else verify_pb2.DraftFingerprint()
    return pb.GetModelInfoResponse(
        target=target.target.name,
        draft=draft.name,
        vocab_size=target.target.vocab_size,
        max_context=target.max_context,
        eos_token_ids=target.eos_token_ids,
        modes=modes,
        default_mode=default,
        # A whole block of B proposals ("b16+1") is for services started with a width of B + 1.
        max_draft_tokens=max(draft.block_size - 1, default_tokens) if speculative else 0,
        default_draft_tokens=default_tokens if speculative else 0,
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
        synthetic_acceptance=target.synthetic_acceptance,
    )


def _check_tokenizer(
    target: verify_pb2.TargetFingerprint, tokenizer: Tokenizer, config: RouterConfig
) -> None:
    """Ids of another tokenizer are valid input, and the answer is nonsense: refused at start."""
    field, remedy = f"tokenizer of {config.target}", "give the verify service's --target"
    if tokenizer.num_ids > target.vocab_size:
        expected = f"at most {target.vocab_size} ids, as {target.name} has"
        raise Mismatch(field, expected, tokenizer.num_ids, remedy)
    own = tokenizer_hash(config.target)
    if target.tokenizer_hash and own != target.tokenizer_hash:
        raise Mismatch(field, target.tokenizer_hash, own, remedy)


def _modes(target: verify_pb2.GetTargetResponse, config: RouterConfig) -> list[spec.Mode.ValueType]:
    """Weakest first."""
    if config.draft is None:
        return [spec.MODE_AR]
    if not target.HasField("draft"):
        _log.warning("the verify service at %s has no draft loaded: plain only", config.verify)
        return [spec.MODE_AR]
    domino = [spec.MODE_DOMINO] if target.draft.has_domino_head else []
    dspark = [spec.MODE_DSPARK] if target.draft.has_dspark_head else []
    return [spec.MODE_AR, spec.MODE_DFLASH, *domino, *dspark]
