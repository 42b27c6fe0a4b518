"""The draw of a step's graph on a real GPU, at a real vocabulary's size, against the CPU's."""

import random

import pytest
import torch

from verify_service.sampling import SamplingParams, sample

pytest.importorskip("triton")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
if torch.cuda.is_available():
    from domino_kernels.gpu.accept import sampling_accept

BATCH, WIDTH = 24, 8


@pytest.mark.parametrize("vocab", [131, 8193, 151936])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_draws_are_the_cpus(dtype: torch.dtype, vocab: int) -> None:
    """A border of top-k or top-p one candidate off, another random number, a sum read too early."""
    rng, numbers = torch.Generator("cuda").manual_seed(1), random.Random(2)
    logits = torch.randn(BATCH * WIDTH, vocab, generator=rng, device="cuda") * 3
    logits[:, ::997] += 9  # some hundred likely ones, as a model's rows have
    logits = logits.to(dtype)
    params = [
        SamplingParams(
            temperature=numbers.choice([0.2, 0.7, 1.0, 1.9]),
            top_k=numbers.choice([0, 0, 1, 20, 1000, 5000]),
            top_p=numbers.choice([1.0, 0.95, 0.8, 0.1]),
            min_p=numbers.choice([0.0, 0.0, 0.05]),
            seed=numbers.getrandbits(63),
        )
        for _ in range(BATCH)
    ]
    knobs = torch.tensor(
        [[p.temperature, p.top_k, p.top_p, p.min_p, 0.0] for p in params], dtype=torch.float64
    )
    knobs.view(torch.int64)[:, 4] = torch.tensor([p.seed for p in params])
    positions = torch.arange(BATCH * WIDTH, dtype=torch.int32)
    ids = torch.zeros(BATCH, WIDTH, dtype=torch.int32, device="cuda")
    counts = torch.full((BATCH,), WIDTH, dtype=torch.int32, device="cuda")
    found = sampling_accept(logits, ids, counts, positions.cuda(), knobs.cuda())
    rows = [p for p in params for _ in range(WIDTH)]
    wanted = sample(logits.cpu(), rows, (positions + 1).tolist()).view(BATCH, WIDTH)
    assert torch.equal(found[:, 2:].long().cpu(), wanted)
