"""Rows of two projections side by side, on a CPU and on a GPU: each draft gets its own only."""

from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from domino_cli.in_process import InProcess, collect
from domino_kernels.gpu.few_rows import GpuLinear
from domino_serve.v1 import draft_pb2
from domino_serve.v1 import speculation_pb2 as spec
from serving.errors import InternalError
from tests.engines import OracleLink, engines
from tests.tiny_models import VOCAB, write_draft, write_target
from verify_service.gpu_projections import GpuProjections
from verify_service.gpu_target import Projection
from verify_service.scheduler import Work
from verify_service.sequence import Chosen, DraftPlan

COUNT, TAPS = 40, 2
PROMPTS = [[3, 9, 4, 100, 12], list(range(20, 60)), [5], list(range(90, 120))]
on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
DEVICES = [pytest.param("cpu"), pytest.param("cuda:0", marks=[pytest.mark.gpu, on_gpu])]


class KeepingLink(OracleLink):
    """Keeps the rows it is sent, by ticket."""

    def __init__(self, right: Mapping[str, Sequence[int]], projection: int) -> None:
        super().__init__(right, VOCAB, seed=3)
        self.projection = projection
        self.rows: dict[str, list[Tensor]] = {}

    def send(self, request: draft_pb2.StepRequest, rows: Tensor | None) -> None:
        super().send(request, rows)
        tickets = self._ticket | {opening.session: opening.ticket for opening in request.opens}
        end = 0
        for step in request.steps:
            start, end = end, end + step.num_rows
            if rows is not None:
                self.rows.setdefault(tickets[step.session], []).append(rows[start:end].cpu())

    def all_rows(self) -> dict[str, Tensor]:
        return {ticket: torch.cat(rows) for ticket, rows in self.rows.items()}


@pytest.fixture(scope="module", params=DEVICES)
def engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[InProcess]:
    target, draft = tmp_path_factory.mktemp("target"), tmp_path_factory.mktemp("draft")
    write_target("qwen3", target)
    write_draft(target, draft, block_size=8, domino=True, shift=True)
    options: Any = {"device": request.param, "prefill_tokens": 32, "max_sequences": 6}
    with engines(target, draft, **options) as running:
        yield running


def add_projection(engine: InProcess, like: Tensor, seed: int) -> int:
    """like: a row."""
    generator, hidden = torch.Generator().manual_seed(seed), like.shape[-1]
    fc = torch.randn(hidden, TAPS * hidden, generator=generator) * 0.1
    executor = engine.engine._executor

    def add() -> int:
        number = executor.add_projection(fc, torch.ones(hidden))
        engine.engine.scheduler.turns.newest = number
        return number

    return engine.engine.commands.call(add)


def drafted(
    engine: InProcess, links: Sequence[KeepingLink]
) -> tuple[list[list[int]], list[dict[str, Tensor]]]:
    """Every prompt with every link, all at once: ids, and the rows each link got."""
    events = [
        engine.submit(
            prompt,
            COUNT,
            plan=DraftPlan(link=link, ticket=str(i), mode=spec.MODE_DOMINO, draft_tokens=3 + i),
        )
        for i, prompt in enumerate(PROMPTS)
        for link in links
    ]
    ids = [collect(one)[0] for one in events]
    assert engine.engine.idle.wait(60)
    return ids, [link.all_rows() for link in links]


def test_two_projections_at_once(engine: InProcess) -> None:
    """Prevents rows of one draft's projection in another draft's KV while both are served: nothing
    would show but a low acceptance."""
    plain = [collect(engine.submit(prompt, COUNT))[0] for prompt in PROMPTS]
    right = {str(i): [*p, *ids] for i, (p, ids) in enumerate(zip(PROMPTS, plain, strict=True))}
    ids, (first,) = drafted(engine, [KeepingLink(right, 0)])
    assert ids == plain
    number = add_projection(engine, first["0"], 1)
    _, (second,) = drafted(engine, [KeepingLink(right, number)])
    both = [KeepingLink(right, 0), KeepingLink(right, number)]
    ids, together = drafted(engine, both)
    assert ids == [answer for answer in plain for _ in both]
    for alone, beside in zip((first, second), together, strict=True):
        for ticket, rows in alone.items():
            least = min(len(rows), len(beside[ticket]))  # the last ones are sent by chance
            assert least >= COUNT - 8
            assert torch.allclose(rows[:least], beside[ticket][:least], atol=1e-4), ticket
    assert not torch.allclose(first["1"], second["1"], atol=0.1)


def test_a_pass_that_fails_for_one(engine: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prevents graphs, or a step that was started early, from being used after a fault."""
    expected = [collect(engine.submit(prompt, COUNT))[0] for prompt in PROMPTS]
    executor = engine.engine._executor
    run, start = executor.run, executor.start

    def check(work: Sequence[Work]) -> None:
        if any(w.sequence.prompt_len == 7 and w.sequence.num_generated >= 5 for w in work):
            raise RuntimeError("out of luck")

    def poisoned_run(work: Sequence[Work]) -> list[Chosen]:
        check(work)
        return run(work)

    def poisoned_start(work: Sequence[Work]) -> Any:
        check(work)
        return start(work)

    monkeypatch.setattr(executor, "run", poisoned_run)
    monkeypatch.setattr(executor, "start", poisoned_start)
    events = [engine.submit(prompt, COUNT) for prompt in [*PROMPTS, [8] * 7]]
    with pytest.raises(InternalError):
        collect(events.pop())
    assert [collect(one)[0] for one in events] == expected


def test_graphs_find_each_projection_in_one_place() -> None:
    """Graphs read the memory they were captured with: weights put elsewhere would never be used.

    Rows that are owed are written with the weights before, once at each change."""
    fc, norm = torch.randn(8, 16), torch.ones(8)
    projection = Projection(GpuLinear(fc.clone()), norm.clone(), 1e-5)
    target: Any = SimpleNamespace(projection=projection)
    owed: list[float] = []
    drafts = GpuProjections(target, lambda: owed.append(float(projection.norm[0])))
    place = projection.fc.weight.data_ptr()
    for number, factor in ((1, 2.0), (2, 3.0)):
        assert drafts.add(fc * factor, norm * factor) == number
        for used, expected in ((number, factor), (number - 1, max(1.0, factor - 1))):
            drafts.use(used)
            drafts.use(used)
            assert projection.fc.weight.data_ptr() == place
            assert torch.equal(projection.fc.weight, fc * expected)
            assert torch.equal(projection.norm, norm * expected)
    assert sorted(drafts._kept) == [1, 2]
    assert owed == [1.0, 2.0, 1.0, 3.0], "by those in use before: the first, then each other one"
