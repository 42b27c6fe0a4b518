"""How many KV positions a GPU's memory is given, and which steps its graphs take."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from serving.options import OptionError
from verify_service.config import VerifyConfig
from verify_service.sampling import SamplingParams
from verify_service.scheduler import Work
from verify_service.sequence import Request, Sequence

pytest.importorskip("triton")
from verify_service.gpu_items import chosen_in_graph
from verify_service.gpu_load import SLACK, affordable_pages
from verify_service.gpu_prompts import row_buckets
from verify_service.gpu_step import StepGraphs, batch_buckets

POSITION = 2 * 3 * 2 * 16 + 64  # values: keys and values of 3 layers, and a projected row
SIZES = SimpleNamespace(
    num_layers=3, num_kv_heads=2, head_dim=16, hidden_size=64, intermediate_size=256
)


def pages(monkeypatch: pytest.MonkeyPatch, free: int, **options: Any) -> int:
    """Pages of 10 positions in 2-byte values, of `free` bytes beside slack, steps and a prompt."""
    config = VerifyConfig(
        target=Path("x"), device="cuda", page_size=10, prefill_tokens=8, **options
    )
    prompt = 8 * (4 * 256 + 8 * 64) * 2
    total = free + SLACK + 2 * 1000 + prompt
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (total, total))
    target: Any = SimpleNamespace(
        config=SIZES,
        dtype=torch.bfloat16,
        projection=object(),
        device=torch.device("cuda"),
        plan=SimpleNamespace(fixed_bytes=lambda rows: 0),
    )
    return affordable_pages(config, target, 1000)


def test_pages_are_what_was_asked_for_or_all_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many pages fail at the first long prompt, hours after the start."""
    page = 10 * POSITION * 2
    assert pages(monkeypatch, 7 * page, kv_tokens=0) == 7
    assert pages(monkeypatch, 7 * page + page - 1, kv_tokens=0) == 7
    assert pages(monkeypatch, 7 * page, kv_tokens=61) == 7
    with pytest.raises(OptionError, match=r"kv_tokens: 71 exceeds.*70 positions fit"):
        pages(monkeypatch, 7 * page, kv_tokens=71)
    with pytest.raises(OptionError, match=r"kv_tokens: 0 exceeds.* 0 positions fit"):
        pages(monkeypatch, page - 1, kv_tokens=0)


def test_zero_tokens_are_for_gpus() -> None:
    """A CPU has no free memory of its own: 0 pages would refuse every request."""
    with pytest.raises(OptionError, match="kv_tokens"):
        VerifyConfig(target=Path("x"), kv_tokens=0)


@pytest.mark.parametrize(
    ("most", "buckets"), [(1, [1]), (6, [1, 2, 4, 6]), (64, [1, 2, 4, 8, 16, 24, 32, 48, 64])]
)
def test_buckets_end_at_the_largest_batch(most: int, buckets: list[int]) -> None:
    """A batch without a bucket would have no graph to run."""
    assert batch_buckets(most) == buckets
    assert batch_buckets(200)[-1] == 128


def test_prompts_have_graphs_up_to_what_a_step_gives_them() -> None:
    """A chunk without one runs by single launches, which cost the host more than the GPU."""
    assert row_buckets(256) == [64, 128, 256]
    assert row_buckets(300) == [64, 128, 256, 300]
    assert row_buckets(48) == [48]
    assert row_buckets(5000) == [64, 128, 256, 384, 512, 768, 1024, 1536, 2048]


SAMPLING = SamplingParams(temperature=1.0, seed=1)


@pytest.mark.parametrize(
    ("options", "chosen"),
    [
        ({}, True),
        ({"sampling": SAMPLING}, True),
        ({"min_tokens": 4, "stop_ids": frozenset({2})}, False),
        ({"min_tokens": 2, "stop_ids": frozenset({2})}, True),
        ({"min_tokens": 4}, True),
    ],
)
def test_graphs_choose_where_all_ids_are_allowed(options: dict[str, Any], chosen: bool) -> None:
    """A graph knows no stop mask."""
    assert chosen_in_graph(running(**options)) is chosen


@pytest.mark.parametrize("apart", [False, True])
def test_graphs_that_draw_run_where_somebody_samples(apart: bool) -> None:
    """Over ranks the greedy one has a part of the logits alone: it would draw from that."""
    launched: list[bool] = []
    graphs = object.__new__(StepGraphs)
    steps = {
        (2, 4, draws): SimpleNamespace(launch=lambda *given, draws=draws: launched.append(draws))
        for draws in (False, True)
    }
    vars(graphs).update(_batches=[2], _widths=[4], _apart=apart, _steps=steps, _late=None)
    graphs.launch([running()])
    graphs.launch([running(), running(sampling=SAMPLING)])
    assert launched == [False, apart]


def running(**options: Any) -> Work:
    """A sequence of three positions and two more tokens."""
    plain: dict[str, Any] = {
        "request_id": "",
        "prompt_ids": [1],
        "max_tokens": 9,
        "stop_ids": frozenset(),
    }
    request = Request(**(plain | {"emit": print} | options))
    sequence = Sequence(request, kv_len=3)
    sequence.tokens += [5, 6]
    return Work(sequence=sequence, ids=[6, 7, 8], choices=3)
