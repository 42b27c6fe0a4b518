"""From options to an engine: reads the draft, and of the target the embedding and the head."""

import logging
import time
import uuid
from dataclasses import dataclass

import torch

from domino_kernels.native.pool import use_threads
from domino_serve.v1 import draft_pb2, verify_pb2
from draft_service.config import DraftServiceConfig
from draft_service.engine import DraftEngine
from draft_service.executor import Executor
from draft_service.model import DraftModel
from draft_service.rollout import make_samplers
from draft_service.seats import Seats
from draft_service.self_test import reference_rows
from draft_service.tables import read_tables
from serving.contract import CONTRACT_VERSION
from serving.device import open_device, sized_by
from serving.draft_format import open_draft
from serving.fingerprint import draft_fingerprint, target_fingerprint
from serving.options import OptionError
from serving.plan import log_plan
from serving.self_test import self_test_block
from serving.target_config import open_target
from serving.tensors import DTYPES

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """An engine, the target it belongs to, and what it answers to a handshake.

    self_test: the rows [n, hidden] it expects of a verify service, float32.
    """

    engine: DraftEngine
    target: verify_pb2.TargetFingerprint
    hello: draft_pb2.HandshakeResponse
    self_test: torch.Tensor


def load(config: DraftServiceConfig) -> Loaded:
    """Raises CheckpointError or OptionError naming what does not fit."""
    began = time.monotonic()
    dtype, device = DTYPES[config.dtype], open_device(config.device)
    use_threads(config.threads, native=dtype == torch.float32 and device.type == "cpu")
    target, target_config = open_target(config.target)
    checkpoint, draft_config = open_draft(config.draft, target_config, tokenizer=config.target)
    log_plan(log, "draft", checkpoint.name, draft_config)
    if config.domino_candidates and draft_config.domino is None:
        remedy = "needs a draft with a Domino head; leave it out for this one"
        raise OptionError("domino_candidates", config.domino_candidates, remedy)
    tables = read_tables(
        draft_config, checkpoint, target_config, target, dtype=dtype, device=device
    )
    pages = -(-config.kv_tokens // config.page_size)
    model = DraftModel(
        draft_config,
        checkpoint,
        tables.embedding,
        max_positions=min(draft_config.max_context, pages * config.page_size),
        dtype=dtype,
    )
    samplers = make_samplers(draft_config, checkpoint, tables, config.domino_candidates)
    with sized_by("kv_tokens", config.kv_tokens):
        kv = model.new_kv(pages, config.page_size)
    block = self_test_block(target, target_config, len(draft_config.target_layer_ids))
    seats = Seats(
        pages=pages,
        page_size=config.page_size,
        max_sessions=config.max_sessions,
        ttl_s=config.ticket_ttl_s,
    )
    engine = DraftEngine(Executor(model, samplers, kv), seats, max_rows=config.max_rows)
    log.info(
        "loaded in %.1f s, %d KV positions", time.monotonic() - began, pages * config.page_size
    )
    return Loaded(
        engine=engine,
        target=target_fingerprint(target, target_config, config.dtype),
        hello=draft_pb2.HandshakeResponse(
            contract_version=CONTRACT_VERSION,
            draft=draft_fingerprint(checkpoint, draft_config),
            incarnation=uuid.uuid4().hex,
            max_sessions=config.max_sessions,
            max_rows=config.max_rows,
            context_id=engine.context_id,
        ),
        self_test=reference_rows(draft_config, checkpoint, block),
    )
