"""From options to an engine: reads the draft, and of the target the embedding and the head."""

import logging
import time
import uuid
from dataclasses import dataclass

import torch
from torch import Tensor

from domino_kernels.linear import Linear
from domino_serve.v1 import draft_pb2, verify_pb2
from draft_service.config import DraftServiceConfig
from draft_service.engine import DraftEngine
from draft_service.model import DraftModel
from draft_service.rollout import make_samplers
from draft_service.seats import Seats
from serving.checkpoint import Checkpoint
from serving.contract import CONTRACT_VERSION
from serving.device import open_device
from serving.draft_config import load_draft_config
from serving.fingerprint import draft_fingerprint, target_fingerprint
from serving.target_config import TargetConfig, load_target_config
from serving.tensors import DTYPES

# What a draft file may hold that this service does not read: the projection, which the verify
# service runs, and constants that follow from config.json.
LEFT_ALONE = ("fc.weight", "hidden_norm.weight", "rotary_emb.inv_freq", "t2d")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """An engine, the target it belongs to, and what it answers to a handshake."""

    engine: DraftEngine
    target: verify_pb2.TargetFingerprint
    hello: draft_pb2.HandshakeResponse


def load(config: DraftServiceConfig) -> Loaded:
    """Raises CheckpointError or OptionError naming what does not fit."""
    began = time.monotonic()
    if config.threads:
        torch.set_num_threads(config.threads)
    dtype, device = DTYPES[config.dtype], open_device(config.device)
    target, checkpoint = Checkpoint(config.target), Checkpoint(config.draft)
    target_config = load_target_config(target)
    draft_config = load_draft_config(
        checkpoint,
        target_layers=target_config.num_layers,
        target_vocab=target_config.vocab_size,
        target_hidden=target_config.hidden_size,
    )
    log.info("draft %s: %s", checkpoint.name, draft_config)
    embedding, lm_head = borrow(target, target_config, dtype=dtype, device=device)
    model = DraftModel(
        draft_config, checkpoint, embedding, max_positions=draft_config.max_context, dtype=dtype
    )
    samplers = make_samplers(draft_config, checkpoint, lm_head, embedding, config.domino_candidates)
    checkpoint.refuse_unread(known=LEFT_ALONE)
    pages = -(-config.kv_tokens // config.page_size)
    seats = Seats(
        pages=pages,
        page_size=config.page_size,
        max_sessions=config.max_sessions,
        ttl_s=config.ticket_ttl_s,
    )
    kv = model.new_kv(pages, config.page_size)
    engine = DraftEngine(model, samplers, kv, seats, max_rows=config.max_rows)
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
        ),
    )


def borrow(
    checkpoint: Checkpoint, config: TargetConfig, *, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Linear]:
    """The target's embedding [vocab, hidden] and head, which a DFlash draft uses as its own."""
    shape = (config.vocab_size, config.hidden_size)
    embedding = checkpoint.tensor("model.embed_tokens.weight", shape, dtype).to(device)
    if config.tied_embeddings:
        return embedding, Linear(embedding)
    return embedding, Linear(checkpoint.tensor(config.lm_head_name, shape, dtype).to(device))
