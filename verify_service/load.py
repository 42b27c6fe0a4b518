"""From options to an engine: reads both checkpoints, checks that they fit, allocates KV."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from domino_serve.v1 import draft_pb2, verify_pb2
from serving.contract import CONTRACT_VERSION
from serving.draft_config import DraftConfig
from serving.fingerprint import draft_fingerprint, target_fingerprint
from serving.options import OptionError
from serving.self_test import self_test_block
from serving.tensors import DTYPES, to_message
from verify_service.config import VerifyConfig
from verify_service.draft_update import DraftUpdates
from verify_service.drafting import Drafting
from verify_service.engine import Engine
from verify_service.executor import Executor
from verify_service.leading import LeadingExecutor
from verify_service.load_executor import Part, load_part, width_of
from verify_service.ranks import own_device
from verify_service.recorded_test import check_recorded_test
from verify_service.scheduler import Scheduler
from verify_service.synthetic import SyntheticAcceptance, parse_rates
from verify_service.table_width import TableWidth
from verify_service.width_policy import AutoWidth, PlannedWidth, WidthPolicy

GPU_INTERVAL_S = 0.003  # about what thirty streams of a router and a client keep up with

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """An engine, not started yet, and what it says of itself to routers and to drafts.

    end: for when the engine has stopped; lets the other ranks of its group end.
    """

    engine: Engine
    info: verify_pb2.GetTargetResponse
    draft: DraftConfig | None
    hello: draft_pb2.HandshakeRequest
    updates: DraftUpdates | None
    end: Callable[[], None]


def load(config: VerifyConfig) -> Loaded:
    """Raises CheckpointError or OptionError naming what does not fit."""
    began = time.monotonic()
    part = load_part(config)
    info = _info(config, part)
    if config.draft:
        vocab_size = part.target.vocab_size
        check_recorded_test(config.draft, part.executor, config.page_size, vocab_size)
    synthetic = _synthetic(config, info)
    engine = _engine(config, part, info, synthetic)
    positions = part.pages * config.page_size
    log.info("loaded in %.1f s, %d KV positions", time.monotonic() - began, positions)
    block = _self_test_block(config, part)
    hello = draft_pb2.HandshakeRequest(
        contract_version=CONTRACT_VERSION,
        target=info.target,
        draft=info.draft,
        synthetic_acceptance=info.synthetic_acceptance,
        self_test_rows=to_message(part.projection(block)) if part.projection else None,
        follows_updates=part.draft is not None,
    )
    return Loaded(
        engine=engine,
        info=info,
        draft=part.draft,
        hello=hello,
        updates=DraftUpdates(engine, part.executor, block) if part.draft else None,
        end=part.executor.end if isinstance(part.executor, LeadingExecutor) else lambda: None,
    )


def _info(config: VerifyConfig, part: Part) -> verify_pb2.GetTargetResponse:
    """Identities and limits, for routers and drafts."""
    info = verify_pb2.GetTargetResponse(
        target=target_fingerprint(part.checkpoint, part.target, config.dtype),
        max_context=min(part.target.max_context, part.pages * config.page_size),
        max_sequences=config.max_sequences,
        eos_token_ids=part.target.eos_token_ids,
    )
    if part.draft and part.draft_checkpoint:
        info.draft.CopyFrom(draft_fingerprint(part.draft_checkpoint, part.draft))
        info.default_draft_tokens = width_of(config, part.draft) - 1
    return info


def _engine(
    config: VerifyConfig,
    part: Part,
    info: verify_pb2.GetTargetResponse,
    synthetic: SyntheticAcceptance | None,
) -> Engine:
    scheduler = Scheduler(
        pages=part.pages,
        page_size=config.page_size,
        max_sequences=config.max_sequences,
        prefill_tokens=config.prompt_positions,
    )
    drafting = Drafting(
        part.executor.rows,
        part.target.vocab_size,
        step_s=config.draft_step_s,
        timeout_s=config.draft_timeout_s,
    )
    return Engine(
        part.executor,
        scheduler,
        drafting,
        max_waiting=config.max_waiting,
        widths=_widths(config, info.default_draft_tokens, part.executor),
        synthetic=synthetic,
        overlap=config.overlap,
        interval_s=_interval_s(config),
    )


def _self_test_block(config: VerifyConfig, part: Part) -> list[torch.Tensor]:
    """A tensor [n, hidden] a tap, of fixed ids; none without a draft."""
    if not part.draft:
        return []
    dtype, device = DTYPES[config.dtype], torch.device(own_device(config.device))
    taps = self_test_block(part.checkpoint, part.target, len(part.draft.target_layer_ids))
    return [tap.to(device, dtype) for tap in taps]


def _interval_s(config: VerifyConfig) -> float:
    if config.stream_interval_s is not None:
        return config.stream_interval_s
    return 0.0 if torch.device(own_device(config.device)).type == "cpu" else GPU_INTERVAL_S


def _widths(config: VerifyConfig, draft_tokens: int, executor: Executor) -> WidthPolicy:
    policy = config.width_policy or ("fixed" if config.width else "auto")
    if draft_tokens == 0 and config.width_policy == "auto":
        raise OptionError("width_policy", "auto", "needs a draft and a width above 1")
    table = executor.costs() if policy == "auto" and draft_tokens else None
    if table:
        return TableWidth(table, draft_tokens, ping_pong=config.ping_pong)
    if config.ping_pong == "auto":
        remedy = "needs a draft and --width-policy auto on one GPU; take always or off"
        raise OptionError("ping_pong", "auto", remedy)
    always = config.ping_pong == "always"
    learns = config.width_policy or torch.device(own_device(config.device)).type == "cpu"
    if policy == "auto" and draft_tokens and learns:  # several GPUs have no table, and few widths
        return AutoWidth(draft_tokens, halves=always)
    return PlannedWidth(halves=always)


def _synthetic(
    config: VerifyConfig, info: verify_pb2.GetTargetResponse
) -> SyntheticAcceptance | None:
    """Pretended acceptance, told to everybody who asks what is loaded."""
    text = config.benchmark_synthetic_acceptance
    if text is None:
        return None
    if config.draft is None:
        raise OptionError("benchmark_synthetic_acceptance", text, "needs a draft: give --draft")
    rates = parse_rates(text, info.default_draft_tokens)
    info.synthetic_acceptance = text
    log.warning("SYNTHETIC ACCEPTANCE %s: benchmark only, answers are NOT the target's", text)
    return SyntheticAcceptance(rates, info.target.vocab_size)
