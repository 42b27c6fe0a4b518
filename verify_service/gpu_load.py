"""From checkpoints to an executor on a GPU: weights, then the pages that memory is left for."""

import logging

import torch

from domino_kernels.gpu.few_rows import GpuLinear
from serving.checkpoint import Checkpoint
from serving.device import sized_by
from serving.draft_config import DraftConfig
from serving.options import OptionError
from serving.target_config import TargetConfig
from verify_service.config import VerifyConfig
from verify_service.gpu_executor import GpuExecutor
from verify_service.gpu_invariance import check_row_invariance
from verify_service.gpu_prompts import row_buckets
from verify_service.gpu_step import StepGraphs, batch_buckets
from verify_service.gpu_target import GpuTarget, Projection, Read
from verify_service.ranks import ALONE, Ranks

WIDTHS = (1, 8, 16)
SLACK = 2**30  # bytes left to cuBLAS, the allocator and the graphs' own nodes
log = logging.getLogger(__name__)


def load_gpu_executor(
    config: VerifyConfig,
    target_config: TargetConfig,
    checkpoint: Checkpoint,
    draft: tuple[DraftConfig, Checkpoint] | None,
    *,
    dtype: torch.dtype,
    device: torch.device,
    ranks: Ranks = ALONE,
) -> GpuExecutor:
    """Raises OptionError naming the setting to lower when the device's memory does not suffice."""
    torch.cuda.set_device(device)

    def reads(source: Checkpoint) -> Read:
        return lambda name, shape: source.tensor(name, shape, dtype).to(device)

    drafted = (draft[0], reads(draft[1])) if draft and not ranks.rank else None
    try:
        target = GpuTarget(
            target_config,
            reads(checkpoint),
            dtype=dtype,
            device=device,
            taps=drafted[0].target_layer_ids if drafted else (),
            projection=_projection(*drafted, fixed=config.deterministic) if drafted else None,
            ranks=ranks,
            deterministic=config.deterministic,
        )
    except torch.OutOfMemoryError:
        raise OptionError(
            "dtype", config.dtype, "the target's weights exceed the device's memory; take a dtype "
            "of fewer bytes or a smaller target",
        ) from None  # fmt: skip
    if config.deterministic:
        check_row_invariance(target)
    widths = {*WIDTHS, config.width or 1, draft[0].block_size if draft else 1}
    with torch.inference_mode(), sized_by("max_sequences", config.max_sequences):
        step_bytes = measured_step(target, config.page_size, config.max_sequences, max(widths))
    pages = ranks.least(affordable_pages(config, target, step_bytes), device)
    with sized_by("kv_tokens", pages * config.page_size):
        return GpuExecutor(
            target,
            pages=pages,
            page_size=config.page_size,
            max_sequences=config.max_sequences,
            widths=sorted(widths),
            prompt_rows=row_buckets(config.prompt_positions),
            overlap=config.overlap,
        )


def measured_step(target: GpuTarget, page_size: int, max_sequences: int, width: int) -> int:
    """Bytes that the largest step allocates beside weights and pages, its logits included."""
    torch.cuda.reset_peak_memory_stats(target.device)
    before = torch.cuda.memory_allocated(target.device)
    kv, batch = target.new_kv(1, page_size), batch_buckets(max_sequences)[-1]
    table = kv.k.new_empty(page_size, target.config.hidden_size) if target.projection else None
    longest = -(-target.config.max_context // page_size)
    steps = StepGraphs(target, kv, table, pages=longest, batches=[batch], widths=[width])
    steps.warm_up()
    used = torch.cuda.max_memory_allocated(target.device) - before
    del kv, table, steps
    torch.cuda.empty_cache()
    return used


def affordable_pages(config: VerifyConfig, target: GpuTarget, step_bytes: int) -> int:
    """The pages asked for, or with kv_tokens 0 all that fit beside the steps."""
    c, size = target.config, target.dtype.itemsize
    values = 2 * c.num_layers * c.num_kv_heads * c.head_dim
    values += c.hidden_size if target.projection else 0
    prompt = config.prompt_positions * (4 * c.intermediate_size + 8 * c.hidden_size) * size
    prompt += target.plan.fixed_bytes(config.prompt_positions)
    free, total = torch.cuda.mem_get_info(target.device)
    left = free - SLACK - 2 * step_bytes - prompt  # the graphs' pool, and launches outside it
    most = max(0, left) // (values * size * config.page_size)
    log.info(
        "%.1f of %.1f GiB free after the weights; steps take %.2f GiB; room for %d KV positions",
        free / 2**30,
        total / 2**30,
        2 * step_bytes / 2**30,
        most * config.page_size,
    )
    asked = -(-config.kv_tokens // config.page_size)
    if not 0 < (asked or most) <= most:
        raise OptionError(
            "kv_tokens",
            config.kv_tokens,
            f"exceeds the device's memory: {most * config.page_size} positions fit; lower it or "
            "max_sequences",
        )
    return asked or most


def _projection(config: DraftConfig, read: Read, *, fixed: bool) -> Projection:
    hidden, taps = config.hidden_size, len(config.target_layer_ids)
    fc = read("fc.weight", (hidden, taps * hidden))
    norm = read("hidden_norm.weight", (hidden,))
    return Projection(GpuLinear(fc, fixed=fixed), norm, config.rms_norm_eps)
