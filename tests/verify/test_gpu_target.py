"""The GPU's target against the CPU's, its kernels under Triton's interpreter."""

import pytest

from tests.kernels.interpreted import run_interpreted

pytest.importorskip("triton")

SAME = """
import tempfile
from pathlib import Path

from domino_kernels.attention import Batch, Span
from domino_kernels.gpu.few_rows import GpuLinear
from serving.target_config import open_target
from tests.tiny_models import SHAPE, VOCAB, write_target
from domino_kernels.gpu import attention_plan
from verify_service.gpu_rows import RaggedBucket, ragged_rows
from verify_service import gpu_step
from verify_service.gpu_target import GpuTarget, Projection
from verify_service.sampling import SamplingParams, sample
from verify_service.scheduler import Work
from verify_service.sequence import Request, Sequence
from verify_service.target import Target

attention_plan.pieces = lambda *_: 1  # the interpreter is slow, and merges are many programs
CPU, PAGE = torch.device("cpu"), 4

def work(ids, start, pages, sampling=None):
    request = Request(
        request_id="", prompt_ids=[], max_tokens=1, stop_ids=frozenset(), emit=print,
        sampling=sampling,
    )
    return Work(sequence=Sequence(request, pages=pages, kv_len=start), ids=ids, choices=len(ids))

SHAPE |= {"num_hidden_layers": 2, "num_attention_heads": 4}
scratch = tempfile.TemporaryDirectory()
folder = Path(scratch.name)
write_target(FAMILY, folder)
checkpoint, config = open_target(folder)
taps = (1, 0)
oracle = Target(config, checkpoint, dtype=torch.float32, device=CPU, taps=taps)
fc = torch.randn(config.hidden_size, 2 * config.hidden_size)
projection = Projection(GpuLinear(fc), torch.rand(config.hidden_size), 1e-5)
target = GpuTarget(
    config, lambda name, shape: checkpoint.tensor(name, shape, torch.float32),
    dtype=torch.float32, device=CPU, taps=taps, projection=projection, deterministic=FIXED,
)
kv, mine = oracle.new_kv(16, PAGE), target.new_kv(16, PAGE)
table = torch.zeros(16 * PAGE, config.hidden_size)
ids = torch.randint(VOCAB, (30,), generator=torch.Generator().manual_seed(1)).tolist()
one, two = [9, 2, 5, 11], [3, 8, 1, 14]

def expect(spans, ids):
    batch = Batch(spans, PAGE, CPU)
    x, outputs = oracle.forward(torch.tensor(ids), batch, kv)
    normed = torch.nn.functional.rms_norm(
        torch.cat(outputs, -1) @ fc.T, fc.shape[:1], projection.norm, 1e-5
    )
    return oracle.logits(x), normed, batch.pages * PAGE + batch.offsets

def close(logits, found):
    torch.testing.assert_close(found, logits, atol=2e-4, rtol=2e-4)

prompts = [work(ids[:7], 0, one), work(ids[:5], 0, two)]
logits, rows, slots = expect(
    [Span(start=0, count=7, pages=one), Span(start=0, count=5, pages=two)], ids[:7] + ids[:5]
)
rows_in = ragged_rows(prompts, PAGE, target.plan, CPU)
close(logits, target.logits(target.forward(rows_in, mine, table)))
torch.testing.assert_close(table[slots], rows, atol=2e-4, rtol=2e-4)
assert int((table != 0).any(1).sum()) == 12

if not FIXED:  # such targets have no graphs of prompts
    bucket = RaggedBucket(14, 3, pages=8, page_size=PAGE, plan=target.plan, device=CPU)
    bucket.fill([work(ids[:14], 0, [3, 5, 7, 9])])  # what is left of it must not be seen
    bucket.fill(prompts)
    again = target.new_kv(16, PAGE)
    normed = target.forward(bucket.rows, again, torch.zeros_like(table))
    close(logits, target.logits(normed[:12]))
    for x, y in ((again.k, mine.k), (again.v, mine.v)):  # filling rows are stored nowhere
        torch.testing.assert_close(x, y, atol=2e-4, rtol=2e-4, equal_nan=True)

steps = gpu_step.StepGraphs(target, mine, table, pages=8, batches=[4], widths=[5])
step = steps._step(4, 5, draws=False)
params = SamplingParams(temperature=1.5, top_p=0.9, seed=3)
step.bucket.fill([work(ids[5:7], 5, two, params), work(ids[7:12], 7, one)])
found = step.run()
logits, rows, slots = expect(
    [Span(start=5, count=2, pages=two), Span(start=7, count=5, pages=one)], ids[5:7] + ids[7:12]
)
best = logits.argmax(-1).tolist()
drawn = sample(step._logits[:2], [params] * 2, [6, 7]).tolist()
assert found[0, 2:4].tolist() == drawn != best[:2] and found[1, 2:].tolist() == best[2:]
torch.testing.assert_close(table[slots], rows, atol=2e-4, rtol=2e-4)
assert int((table != 0).any(1).sum()) == 19
step.bucket.fill([work(ids[7:8], 7, two)])  # it samples no more
found = step.run()
logits, rows, slots = expect([Span(start=7, count=1, pages=two)], ids[7:8])
assert found[0, 2] == logits.argmax() == found[0, 1] and found[0, 0] == 0
"""


@pytest.mark.parametrize(("family", "fixed"), [("qwen3", False), ("llama_bias", True)])
def test_target_equals_the_cpu_target(family: str, fixed: bool) -> None:
    """Prompts, steps of padded buckets, taps and pages: one index off and tokens change."""
    run_interpreted(SAME.replace("FAMILY", repr(family)).replace("FIXED", str(fixed)))
