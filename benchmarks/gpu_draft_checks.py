"""What must hold before a draft step is timed; each check raises CheckFailed or yields a line."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from benchmarks.gpu_draft_model import (
    PAGE,
    drafting,
    qwen3_8b_domino,
    random_checkpoint,
    random_draft,
    random_kv,
    random_rows,
)
from benchmarks.gpu_verify_checks import CheckFailed, expect, relative
from benchmarks.rollout_checks import same
from domino_kernels.attention import Batch, Span
from domino_serve.v1 import speculation_pb2 as spec
from draft_service.executor import Part
from draft_service.gpu_model import GpuDraft
from draft_service.gpu_rows import Bucket
from draft_service.gpu_step import StepGraphs
from draft_service.model import DraftModel

PAGES, CONTEXT, ERROR = 12, 640, 3e-2  # bfloat16 through five layers, against float32


@torch.inference_mode()
def network() -> Iterator[str]:
    """Appended rows and blocks at full shapes against torch in float32; a shifted block fails."""
    config = qwen3_8b_domino()
    embedding = torch.randn(config.vocab_size, 4096, device="cuda").bfloat16() / 64
    gpu = random_draft(config, embedding)
    plain = DraftModel(
        config, random_checkpoint(), embedding.float(), max_positions=16384, dtype=torch.float32
    )
    for count in (7, 15):
        parts = drafting(3, count, CONTEXT, 6, PAGES)
        rows = random_rows(parts, 4096)
        bucket = Bucket(gpu, 4, count, pages=4, page_size=PAGE)
        wanted = _reference(plain, gpu, parts, rows)[:, bucket.blocks.used]
        error = relative(_hidden(gpu, bucket, parts, rows), wanted)
        yield expect(f"draft network, {count} rows used", error, ERROR)
        wrong = relative(_hidden(gpu, bucket, parts, rows, shift=1), wanted)
        if wrong <= ERROR:
            raise CheckFailed(f"a block one position too far passes: error {wrong}")
        yield f"mutant: block one position too far caught, error {wrong:.2f}"


def _hidden(
    gpu: GpuDraft, bucket: Bucket, parts: Sequence[Part], rows: Tensor, shift: int = 0
) -> Tensor:
    torch.manual_seed(5)
    kv = random_kv(gpu, PAGES)
    bucket.fill(parts, rows)
    bucket.blocks.rows.positions.add_(shift)
    gpu.append(bucket.projected, bucket.appended, kv)
    return gpu.forward(bucket.blocks, kv)[: len(parts)]


def _reference(plain: DraftModel, gpu: GpuDraft, parts: Sequence[Part], rows: Tensor) -> Tensor:
    torch.manual_seed(5)
    random, kv = random_kv(gpu, PAGES), plain.new_kv(PAGES, PAGE)
    kv.k.copy_(random.k)
    kv.v.copy_(random.v)
    device, block = plain.device, plain.config.block_size
    new = [Span(start=p.start, count=p.num_rows, pages=p.pages) for p in parts]
    plain.append(rows.to(device, torch.float32), Batch(new, PAGE, device), kv)
    ids = torch.full((len(parts), block), plain.config.mask_token_id, device=device)
    ids[:, 0] = torch.tensor([p.current for p in parts])
    spans = [Span(start=p.end, count=block, pages=p.pages) for p in parts]
    return plain.forward(ids.flatten(), Batch(spans, PAGE, device), kv).view(len(parts), block, -1)


def replays(graphs: StepGraphs, batch: int, count: int, pages: int) -> str:
    """A graph replayed for other sessions than it was captured with gives the launches' ids."""
    step = graphs.step(spec.MODE_DOMINO, batch, count)
    for sessions in (batch, max(1, batch - 3)):
        parts = drafting(sessions, count, CONTEXT + sessions, 5, pages)
        rows = random_rows(parts, 4096)
        replayed = torch.tensor(step.run(parts, rows))
        with torch.inference_mode():
            launched = step.launch()[:sessions].cpu()
        same(f"draft step {batch} x {count}", replayed, launched)
    return f"draft step of {batch} x {count}: replays equal launches"
