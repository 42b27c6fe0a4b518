"""What a request to the verify service may say; the router checks too, but nobody is trusted."""

from collections.abc import Iterable

from domino_serve.v1 import verify_pb2
from domino_serve.v1.sampling_pb2 import Sampling
from serving.errors import BadRequest
from serving.sampling import check_sampling
from verify_service.sampling import SamplingParams

MAX_BLOCKS = 64
MAX_BLOCK_IDS = 64
MAX_STOP_IDS = 4096
MAX_NAME = 256  # characters of a request's id or an address


def check_generate(
    request: verify_pb2.VerifyServiceGenerateRequest, info: verify_pb2.GetTargetResponse
) -> None:
    """Raises BadRequest naming the field and the value."""
    if not request.request_id:
        raise BadRequest("request_id", "is empty")
    if len(request.request_id) > MAX_NAME:
        raise BadRequest(
            "request_id", f"has {len(request.request_id)} characters, {MAX_NAME} at most"
        )
    if request.max_tokens < 1:
        raise BadRequest("max_tokens", f"{request.max_tokens} is below 1")
    length = len(request.prompt_ids) + request.max_tokens
    if length > info.max_context:
        raise BadRequest(
            "max_tokens",
            f"a prompt of {len(request.prompt_ids)} tokens and max_tokens {request.max_tokens} "
            f"exceed the {info.max_context} positions of the context, or --kv-tokens",
        )
    _check_prompt(request.prompt_ids, info)
    if len(request.stop_token_ids) > MAX_STOP_IDS:
        count = len(request.stop_token_ids)
        raise BadRequest("stop_token_ids", f"{count} ids, {MAX_STOP_IDS} at most")
    _check_ids("stop_token_ids", request.stop_token_ids, info)
    if not 0 <= request.min_tokens <= request.max_tokens:
        message = f"{request.min_tokens} is not in [0, {request.max_tokens}], which is max_tokens"
        raise BadRequest("min_tokens", message)
    if request.min_tokens and len(set(request.stop_token_ids)) >= info.target.vocab_size:
        raise BadRequest("stop_token_ids", "leave no token to produce before min_tokens")
    sampling_params(request.sampling)


def check_score(request: verify_pb2.ScoreRequest, info: verify_pb2.GetTargetResponse) -> None:
    """Raises BadRequest naming the field and the value."""
    if len(request.prompt_ids) > info.max_context:
        count = len(request.prompt_ids)
        raise BadRequest("prompt_ids", f"{count} ids, the context has {info.max_context} positions")
    _check_prompt(request.prompt_ids, info)
    if not 1 <= len(request.blocks) <= MAX_BLOCKS:
        raise BadRequest("blocks", f"{len(request.blocks)} blocks, 1 to {MAX_BLOCKS} are allowed")
    for index, block in enumerate(request.blocks):
        name, count = f"blocks[{index}].ids", len(block.ids)
        if count > MAX_BLOCK_IDS:
            raise BadRequest(name, f"{count} ids, {MAX_BLOCK_IDS} at most")
        _check_ids(name, block.ids, info)
        if len(request.prompt_ids) + count > info.max_context:
            message = f"ends beyond the {info.max_context} positions of the context, or --kv-tokens"
            raise BadRequest(name, message)
    sampling_params(request.sampling)


def check_address(name: str, address: str) -> None:
    """Raises BadRequest for what cannot be host:port or unix:/path; it may lead nowhere."""
    if len(address) > MAX_NAME or not address.isprintable():
        raise BadRequest(name, f"{address!r:.60} is neither host:port nor unix:/path")


def sampling_params(sampling: Sampling) -> SamplingParams | None:
    """Checked parameters, None when greedy; the seed has to come from the caller."""
    check_sampling(sampling, "sampling.")
    params = SamplingParams.of(sampling)
    if params and not sampling.HasField("seed"):
        raise BadRequest("sampling.seed", "is missing; a retry needs the same one")
    return params


def _check_prompt(ids: Iterable[int], info: verify_pb2.GetTargetResponse) -> None:
    if not ids:
        raise BadRequest("prompt_ids", "is empty; a prompt needs at least one token")
    _check_ids("prompt_ids", ids, info)


def _check_ids(name: str, ids: Iterable[int], info: verify_pb2.GetTargetResponse) -> None:
    vocab = info.target.vocab_size
    for index, token in enumerate(ids):
        if not 0 <= token < vocab:
            raise BadRequest(f"{name}[{index}]", f"{token} is not in [0, {vocab})")
