"""From options to an engine: reads both checkpoints, checks that they fit, allocates KV."""

import logging
import time
from dataclasses import dataclass

import torch

from domino_kernels.native.pool import use_threads
from domino_serve.v1 import verify_pb2
from serving.device import open_device, sized_by
from serving.draft_config import DraftConfig
from serving.draft_format import open_draft
from serving.fingerprint import draft_fingerprint, target_fingerprint
from serving.options import OptionError
from serving.plan import log_plan
from serving.target_config import open_target
from serving.tensors import DTYPES
from verify_service.config import VerifyConfig
from verify_service.drafting import Drafting
from verify_service.engine import Engine
from verify_service.executor import Executor
from verify_service.projection import FeatureProjection
from verify_service.scheduler import Scheduler
from verify_service.target import Target

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """An engine, not started yet, and what it says of itself."""

    engine: Engine
    info: verify_pb2.GetTargetResponse
    draft: DraftConfig | None


def load(config: VerifyConfig) -> Loaded:
    """Raises CheckpointError or OptionError naming what does not fit."""
    began = time.monotonic()
    dtype, device = DTYPES[config.dtype], open_device(config.device)
    use_threads(config.threads, native=dtype == torch.float32 and device.type == "cpu")
    checkpoint, target_config = open_target(config.target)
    log_plan(log, "target", checkpoint.name, target_config)
    draft, projection = None, None
    info = verify_pb2.GetTargetResponse(
        target=target_fingerprint(checkpoint, target_config, config.dtype),
        max_context=target_config.max_context,
        max_sequences=config.max_sequences,
        eos_token_ids=target_config.eos_token_ids,
    )
    if config.draft:
        draft_checkpoint, draft = open_draft(config.draft, target_config, tokenizer=config.target)
        log_plan(log, "draft", draft_checkpoint.name, draft)
        projection = FeatureProjection(draft, draft_checkpoint, dtype=dtype, device=device)
        info.draft.CopyFrom(draft_fingerprint(draft_checkpoint, draft))
        info.default_draft_tokens = _width(config, draft) - 1
    taps = draft.target_layer_ids if draft else ()
    pages = -(-config.kv_tokens // config.page_size)
    target = Target(
        target_config,
        checkpoint,
        dtype=dtype,
        device=device,
        taps=taps,
        max_positions=pages * config.page_size,
    )
    with sized_by("kv_tokens", config.kv_tokens):
        executor = Executor(target, projection, pages=pages, page_size=config.page_size)
    scheduler = Scheduler(
        pages=pages,
        page_size=config.page_size,
        max_sequences=config.max_sequences,
        prefill_tokens=config.prefill_tokens,
    )
    drafting = Drafting(executor.rows, target_config.vocab_size, config.draft_timeout_s)
    engine = Engine(executor, scheduler, drafting, max_waiting=config.max_waiting)
    log.info(
        "loaded in %.1f s, %d KV positions", time.monotonic() - began, pages * config.page_size
    )
    return Loaded(engine=engine, info=info, draft=draft)


def _width(config: VerifyConfig, draft: DraftConfig) -> int:
    limit = draft.max_draft_tokens + 1
    if config.width > limit:
        raise OptionError("width", config.width, f"this draft allows 1 to {limit}")
    return config.width or draft.block_size
