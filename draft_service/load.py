"""From options to an engine: reads the draft, and of the target the embedding and the head."""

import logging
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist

from domino_kernels.linear import int8_weights
from domino_kernels.native.pool import use_threads
from domino_kernels.rollout_shard import VocabShard
from domino_serve.v1 import draft_pb2, verify_pb2
from draft_service.config import DraftServiceConfig
from draft_service.engine import DraftEngine
from draft_service.executor import CpuNetwork, Network, StepExecutor
from draft_service.leading import LeadingExecutor
from draft_service.model import DraftModel
from draft_service.rollout import make_samplers
from draft_service.seats import Seats
from draft_service.self_test import reference_rows
from draft_service.tables import Tables, read_tables
from draft_service.window import windowed
from serving.checkpoint import Checkpoint
from serving.contract import CONTRACT_VERSION
from serving.device import open_device, sized_by
from serving.draft_config import DraftConfig
from serving.draft_format import open_draft
from serving.fingerprint import draft_fingerprint, target_fingerprint
from serving.options import OptionError
from serving.plan import log_plan
from serving.rank_link import Followers, Leader
from serving.ranks import ALONE, Ranks, join, own_device
from serving.self_test import self_test_block
from serving.target_config import open_target
from serving.tensors import DTYPES
from serving.transport.choice import taken
from serving.transport.plane import MapMemory, Plane

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """A draft checkpoint as it is served.

    self_test: the rows [n, hidden] expected of a verify service, float32. fc [hidden, K * hidden],
    norm [hidden]: the projection, which verify services run.
    """

    checkpoint: Checkpoint
    draft: DraftConfig
    tables: Tables
    network: Network
    self_test: torch.Tensor
    fc: torch.Tensor
    norm: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """An engine, the target it belongs to, and what it answers to a handshake.

    served: content hashes of the drafts that came before this one. kinds: memory that rows
    may come in. ranks: processes that hold the draft; end: for when this one has stopped serving,
    lets the others end.
    """

    config: DraftServiceConfig
    engine: DraftEngine
    target: verify_pb2.TargetFingerprint
    hello: draft_pb2.HandshakeResponse
    weights: Weights
    served: tuple[str, ...] = ()
    kinds: Mapping[Plane, MapMemory] = field(default_factory=dict)
    ranks: Ranks = ALONE
    end: Callable[[], None] = lambda: None

    @property
    def self_test(self) -> torch.Tensor:
        """The rows [n, hidden] it expects of a verify service, float32."""
        return self.weights.self_test


def read_weights(
    config: DraftServiceConfig,
    folder: Path,
    loaded: Weights | None = None,
    ranks: Ranks = ALONE,
) -> Weights:
    """A draft and, of the target, the embedding and the head; `loaded` has them already.

    Raises CheckpointError or OptionError naming what does not fit.
    """
    dtype, device = DTYPES[config.dtype], open_device(own_device(config.device))
    target, target_config = open_target(config.target)
    target.require_hash(config.target_sha256, "target-sha256")
    checkpoint, draft = open_draft(folder, target_config, tokenizer=config.target)
    checkpoint.require_hash(config.draft_sha256, "draft-sha256")
    log_plan(log, "draft", checkpoint.name, draft)
    if config.candidates and draft.domino is None:
        remedy = "needs a draft with a Domino head; leave it out for this one"
        raise OptionError("domino_candidates", config.domino_candidates, remedy)
    own = draft.own_embedding or draft.own_head
    tables = None if own or loaded is None else loaded.tables
    rows = draft.draft_vocab_size if draft.own_head else target_config.vocab_size
    shard = _shard(rows, draft, config, ranks)
    with int8_weights(config.int8):
        tables = tables or read_tables(
            draft, checkpoint, target_config, target, dtype=dtype, device=device, shard=shard
        )
        network = _network(config, draft, checkpoint, tables, shard)
    hidden, taps = draft.hidden_size, len(draft.target_layer_ids)
    block = self_test_block(target, target_config, taps)
    return Weights(
        checkpoint=checkpoint,
        draft=draft,
        tables=tables,
        network=network,
        self_test=reference_rows(draft, checkpoint, block),
        fc=checkpoint.tensor("fc.weight", (hidden, taps * hidden), dtype),
        norm=checkpoint.tensor("hidden_norm.weight", (hidden,), dtype),
    )


def _shard(
    rows: int, draft: DraftConfig, config: DraftServiceConfig, ranks: Ranks
) -> VocabShard | None:
    """This rank's rows of the head, where there are several ranks."""
    if ranks.size == 1:
        return None
    if draft.dspark:
        raise OptionError(
            "draft", config.draft, "DSpark's head cannot be shared out over ranks; run one process"
        )
    group = dist.group.WORLD
    assert group is not None, "ranks have joined"
    try:
        return VocabShard.of(rows, group)
    except ValueError as error:
        raise OptionError("WORLD_SIZE", ranks.size, str(error)) from error


def _network(
    config: DraftServiceConfig,
    draft: DraftConfig,
    checkpoint: Checkpoint,
    tables: Tables,
    shard: VocabShard | None,
) -> Network:
    draft = windowed(draft, config.draft_window)
    dtype, pages = DTYPES[config.dtype], -(-config.kv_tokens // config.page_size)
    positions = min(draft.max_context, pages * config.page_size)
    if tables.embedding.is_cuda:
        from draft_service.gpu_network import read_gpu_network  # needs Triton

        return read_gpu_network(config, draft, checkpoint, tables, positions, shard)
    model = DraftModel(draft, checkpoint, tables.embedding, max_positions=positions, dtype=dtype)
    candidates = 0 if config.candidates == "certified" else config.candidates
    options = tables, candidates, shard, config.confidence_threshold
    return CpuNetwork(model, make_samplers(draft, checkpoint, *options))


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    """What a rank runs; link: to the other ranks, where there are."""

    ranks: Ranks
    link: Followers | Leader | None
    device: torch.device
    weights: Weights
    executor: StepExecutor


def load_part(config: DraftServiceConfig) -> Loading:
    """This rank's part, all ranks joined; raises CheckpointError or OptionError."""
    dtype, device = DTYPES[config.dtype], open_device(own_device(config.device))
    # Beside a GPU torch's threads would only wake for the small operations between its steps.
    threads = config.threads or (0 if device.type == "cpu" else 1)
    use_threads(threads, native=dtype == torch.float32 and device.type == "cpu")
    ranks = join(device)
    link: Followers | Leader | None = None
    if ranks.size > 1:
        link = Leader(ranks) if ranks.rank else Followers(ranks)
    weights = read_weights(config, config.draft, ranks=ranks)
    with sized_by("kv_tokens", config.kv_tokens):
        kv = weights.network.new_kv(-(-config.kv_tokens // config.page_size), config.page_size)
    with sized_by("max_sessions", config.max_sessions):
        executor = weights.network.executor(kv)
    if isinstance(link, Followers):
        executor = LeadingExecutor(executor, link)
    return Loading(ranks=ranks, link=link, device=device, weights=weights, executor=executor)


def load(config: DraftServiceConfig) -> Loaded:
    """Raises CheckpointError or OptionError naming what does not fit."""
    began = time.monotonic()
    part = load_part(config)
    weights, executor = part.weights, part.executor
    kinds = taken(config.data_plane, part.device)
    target, target_config = open_target(config.target)
    pages = -(-config.kv_tokens // config.page_size)
    seats = Seats(
        pages=pages,
        page_size=config.page_size,
        max_sessions=config.max_sessions,
        ttl_s=config.ticket_ttl_s,
    )
    engine = DraftEngine(executor, seats, max_rows=config.max_rows)
    log.info(
        "loaded in %.1f s, %d KV positions", time.monotonic() - began, pages * config.page_size
    )
    return Loaded(
        config=config,
        served=tuple(filter(None, config.replaces.split(","))),
        engine=engine,
        target=target_fingerprint(target, target_config, config.dtype),
        hello=draft_pb2.HandshakeResponse(
            contract_version=CONTRACT_VERSION,
            draft=draft_fingerprint(weights.checkpoint, weights.draft),
            incarnation=uuid.uuid4().hex,
            max_sessions=config.max_sessions,
            max_rows=config.max_rows,
            context_id=engine.context_id,
        ),
        weights=weights,
        kinds=kinds,
        ranks=part.ranks,
        end=executor.end if isinstance(executor, LeadingExecutor) else lambda: None,
    )
