"""From options to an executor: reads both checkpoints, joins the other ranks, allocates KV."""

import logging
from dataclasses import dataclass

import torch

from domino_kernels.native.pool import use_threads
from serving.checkpoint import Checkpoint
from serving.device import open_device, sized_by
from serving.draft_config import DraftConfig
from serving.draft_format import open_draft
from serving.options import OptionError
from serving.plan import log_plan
from serving.target_config import TargetConfig, open_target
from serving.tensors import DTYPES
from verify_service.config import VerifyConfig
from verify_service.executor import Executor
from verify_service.leading import LeadingExecutor
from verify_service.projection import FeatureProjection
from verify_service.rank_link import Followers, Leader
from verify_service.ranks import Ranks, join, own_device
from verify_service.target import Target

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A rank's executor with what it was made from; link: to the other ranks, where there are."""

    ranks: Ranks
    link: Followers | Leader | None
    executor: Executor
    pages: int
    checkpoint: Checkpoint
    target: TargetConfig
    draft: DraftConfig | None
    draft_checkpoint: Checkpoint | None
    projection: FeatureProjection | None


def load_part(config: VerifyConfig) -> Part:
    """Raises CheckpointError or OptionError naming what does not fit."""
    dtype, device = DTYPES[config.dtype], open_device(own_device(config.device))
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    use_threads(config.threads, native=dtype == torch.float32 and device.type == "cpu")
    ranks = join(device)
    link: Followers | Leader | None = None
    if ranks.size > 1:
        link = Leader(ranks) if ranks.rank else Followers(ranks)
    checkpoint, target = open_target(config.target)
    checkpoint.require_hash(config.target_sha256, "target-sha256")
    log_plan(log, "target", checkpoint.name, target)
    draft, draft_checkpoint, projection = None, None, None
    if config.draft:
        draft_checkpoint, draft = open_draft(config.draft, target, tokenizer=config.target)
        draft_checkpoint.require_hash(config.draft_sha256, "draft-sha256")
        log_plan(log, "draft", draft_checkpoint.name, draft)
        width_of(config, draft)  # refused before weights are read and graphs are made
        if not ranks.rank:
            projection = FeatureProjection(draft, draft_checkpoint, dtype=dtype, device=device)
    executor: Executor
    if device.type == "cuda":
        from verify_service.gpu_load import load_gpu_executor  # needs Triton

        drafted = (draft, draft_checkpoint) if draft and draft_checkpoint else None
        executor = load_gpu_executor(
            config, target, checkpoint, drafted, dtype=dtype, device=device, ranks=ranks
        )
        pages = executor.pages
    else:
        pages = -(-config.kv_tokens // config.page_size)
        model = Target(
            target,
            checkpoint,
            dtype=dtype,
            device=device,
            taps=draft.target_layer_ids if draft and projection else (),
            max_positions=pages * config.page_size,
            ranks=ranks,
        )
        with sized_by("kv_tokens", config.kv_tokens):
            executor = Executor(model, projection, pages=pages, page_size=config.page_size)
    if isinstance(link, Followers):
        executor = LeadingExecutor(executor, link)
    return Part(
        ranks=ranks,
        link=link,
        executor=executor,
        pages=pages,
        checkpoint=checkpoint,
        target=target,
        draft=draft,
        draft_checkpoint=draft_checkpoint,
        projection=projection,
    )


def width_of(config: VerifyConfig, draft: DraftConfig) -> int:
    """Positions that a step verifies at most; raises OptionError for more than the draft allows."""
    limit = draft.max_draft_tokens + 1
    if config.width > limit:
        raise OptionError("width", config.width, f"is not possible: this draft allows 1 to {limit}")
    return config.width or draft.block_size
