"""Rows of plain steps that are projected later: the same rows in the same slots."""

import random
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")
from domino_cli.in_process import InProcess, collect
from domino_serve.v1 import speculation_pb2 as spec
from tests.engines import engines
from tests.tiny_models import VOCAB, write_draft, write_target
from tests.verify.early import Waking
from tests.verify.test_width_policy import Scripted
from verify_service.gpu_late_rows import ROWS, LateRows
from verify_service.sequence import Request, Sequence
from verify_service.width_policy import WidthPolicy

HIDDEN, TAPS, SLOTS = 3, 2, 2000


def doubling(sizes: list[int]) -> Any:
    """A target that projects taps to their first layer twice; sizes: rows of each call."""

    def project(taps: Tensor, table: Tensor, slots: Tensor) -> None:
        sizes.append(len(taps))
        kept = slots >= 0
        table[slots[kept].long()] = 2 * taps[kept, :HIDDEN]

    return SimpleNamespace(num_taps=TAPS, project=project)


def test_every_row_is_written_once_wherever_a_step_left_it() -> None:
    """Rows of a fuller moment, or of steps behind a full store, would be lost or written twice."""
    draw, sizes = random.Random(3), list[int]()
    table, expected = torch.zeros(SLOTS, HIDDEN), torch.zeros(SLOTS, HIDDEN)
    late = LateRows(doubling(sizes), table)
    for _ in range(60):
        count = draw.choice([1, 5, 128])
        taps = torch.rand(count, TAPS * HIDDEN) + 1
        slots = torch.tensor(draw.sample(range(SLOTS), count), dtype=torch.int32)
        slots[-1] = -1 if count > 1 else slots[-1]  # a row that only fills its bucket
        expected[slots[slots >= 0].long()] = 2 * taps[slots >= 0, :HIDDEN]
        late.keep(taps, slots)
        taps.zero_(), slots.zero_()  # the next step's graph writes there
        if draw.random() < 0.2:
            late.catch_up()
            assert torch.equal(table, expected)
            table.zero_(), expected.zero_()  # whoever gets the slots next is not written over
    late.catch_up()
    assert torch.equal(table, expected)
    assert {16, ROWS[-1]} <= set(sizes) <= set(ROWS)
    written = len(sizes)
    late.catch_up()
    assert len(sizes) == written, "nothing is owed"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[InProcess, InProcess]]:
    """Engines of one target and draft on the CPU and on the GPU, with few pages."""
    target, draft = tmp_path_factory.mktemp("target"), tmp_path_factory.mktemp("draft")
    write_target("qwen3", target)
    write_draft(target, draft, block_size=8, domino=True, shift=True)
    with (
        engines(target, draft, kv_tokens=256) as on_cpu,
        engines(target, draft, kv_tokens=256, device="cuda:0", draft_device="cuda:0") as on_gpu,
    ):
        yield on_cpu, on_gpu


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("widths", [partial(Scripted, [0]), partial(Waking, 5)])
def test_rows_of_plain_steps_equal_the_cpu(
    pair: tuple[InProcess, InProcess], widths: Callable[[], WidthPolicy]
) -> None:
    """A draft that wakes after plain steps proposes from rows of other positions, or of none.

    Pages are used several times over, so that a late row could reach their next owner."""
    draw = random.Random(4)
    for length, count in ((30, 90), (5, 3), (70, 2), (9, 40), (100, 60)):
        prompt, answers = [draw.randrange(VOCAB) for _ in range(length)], []
        for running in pair:
            running.engine._widths = widths()
            events = running.submit(prompt, count, mode=spec.MODE_DOMINO, draft_tokens=7)
            ids, done = collect(events)
            answers.append((ids, done.speculation.accepted_tokens))
        assert answers[0] == answers[1]
        on_cpu, on_gpu = map(rows, pair)
        torch.testing.assert_close(on_gpu, on_cpu, atol=1e-4, rtol=1e-4)
    assert bool((on_cpu != 0).any(1).sum() > 100)


def rows(engine: InProcess) -> Tensor:
    """Of all pages."""
    executor = engine.engine._executor
    request = Request(
        request_id="", prompt_ids=[], max_tokens=1, stop_ids=frozenset(), emit=lambda event: None
    )
    size = executor._page_size
    count = 256 // size
    every = Sequence(request, pages=list(range(count)))
    return engine.engine.commands.call(lambda: executor.rows([(every, 0, count * size)])).cpu()
