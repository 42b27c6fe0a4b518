"""The verify engine on a GPU against the one on the CPU, in float32: the same ids."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from domino_cli.in_process import InProcess, collect
from domino_serve.v1 import draft_pb2
from domino_serve.v1 import speculation_pb2 as spec
from serving.errors import InternalError
from tests.engines import OracleLink, engines
from tests.tiny_models import VOCAB, write_draft, write_target
from verify_service.gpu_executor import GpuExecutor
from verify_service.sampling import SamplingParams
from verify_service.sequence import DraftPlan

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
FAMILIES = ["qwen3", "llama", "llama_bias", "qwen2"]
COUNT, BAD = 60, 77


@pytest.fixture(scope="module", params=FAMILIES)
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[InProcess, InProcess]]:
    """Engines of one model on the CPU and on the GPU."""
    target, draft = tmp_path_factory.mktemp("target"), tmp_path_factory.mktemp("draft")
    write_target(request.param, target)
    write_draft(target, draft, block_size=8, domino=True, shift=True)
    gpu = {"device": "cuda:0", "prefill_tokens": 48, "max_sequences": 6}
    with (
        engines(target, None) as on_cpu,
        engines(target, draft, **gpu) as on_gpu,  # type: ignore[arg-type]
    ):
        yield on_cpu, on_gpu


def prompts() -> list[list[int]]:
    rng = random.Random(5)
    return [[rng.randrange(VOCAB) for _ in range(n)] for n in (1, 7, 60, 23, 90, 3, 41, 16)]


def graphs(engine: InProcess) -> GpuExecutor:
    executor = engine.engine._executor
    assert isinstance(executor, GpuExecutor)
    return executor


def test_plain_and_drafted_steps_equal_the_cpu(pair: tuple[InProcess, InProcess]) -> None:
    """Buckets, padding, splits, page tables or acceptance taken wrongly change a token."""
    on_cpu, on_gpu = pair
    expected = [collect(on_cpu.submit(prompt, COUNT))[0] for prompt in prompts()]
    before = graphs(on_gpu).num_graph
    together = [on_gpu.submit(prompt, COUNT) for prompt in prompts()]
    assert [collect(events)[0] for events in together] == expected
    assert graphs(on_gpu).num_graph - before >= len(prompts()) * (COUNT - 1)
    tickets = {str(i): [*p, *ids] for i, (p, ids) in enumerate(zip(prompts(), expected))}  # noqa: B905
    link = OracleLink(tickets, VOCAB, seed=3)
    drafted = [
        on_gpu.submit(
            prompt,
            COUNT,
            plan=DraftPlan(link=link, ticket=str(i), mode=spec.MODE_DOMINO, draft_tokens=2 + i),
        )
        for i, prompt in enumerate(prompts())
    ]
    answers = [collect(events) for events in drafted]
    assert [ids for ids, _ in answers] == expected
    assert sum(done.speculation.accepted_tokens for _, done in answers) > COUNT


def test_sampling_and_masks_equal_the_cpu(pair: tuple[InProcess, InProcess]) -> None:
    """Settings, seeds or logits of another row, or of the graph before, give other tokens."""
    on_cpu, on_gpu = pair
    settings = [
        {"sampling": SamplingParams(temperature=0.8, top_k=20, seed=11)},
        {"sampling": SamplingParams(temperature=1.3, top_p=0.9, min_p=0.01, seed=12)},
        {"sampling": SamplingParams(temperature=0.6, top_k=50, top_p=0.7, seed=13)},
        {"stop_ids": range(0, VOCAB, 2), "min_tokens": 20},
        {},
    ]
    before = graphs(on_gpu).num_graph
    answers = []
    for engine in (on_cpu, on_gpu):
        events = [engine.submit([5, 6], 30 + i, **own) for i, own in enumerate(settings)]  # type: ignore[arg-type]
        answers.append([collect(event)[0] for event in events])
    assert answers[0] == answers[1]
    assert graphs(on_gpu).num_graph - before >= 4 * 29
    link = OracleLink({str(i): [5, 6, *ids] for i, ids in enumerate(answers[0])}, VOCAB, seed=3)
    drafted = [
        on_gpu.submit(
            [5, 6],
            30 + i,
            plan=DraftPlan(link=link, ticket=str(i), mode=spec.MODE_DOMINO, draft_tokens=3 + i),
            **own,  # type: ignore[arg-type]
        )
        for i, own in enumerate(settings)
    ]
    assert [collect(events)[0] for events in drafted] == answers[0], "proposals change no draw"


class BadLink(OracleLink):
    """Proposes the token whose embedding is no number."""

    def _propose(self, step: draft_pb2.SessionStep) -> list[int]:
        return [BAD] * step.draft_tokens


@pytest.mark.parametrize("sampling", [None, SamplingParams(temperature=0.8, seed=5)])
def test_no_numbers_end_their_own_request(tmp_path: Path, sampling: SamplingParams | None) -> None:
    """A NaN in a graph's row must not reach the other rows, nor its pages' next owners."""
    target, draft = tmp_path / "target", tmp_path / "draft"
    write_target("qwen3", target)
    write_draft(target, draft, block_size=4, domino=True, shift=True)
    tensors = load_file(target / "model.safetensors")
    tensors["model.embed_tokens.weight"][BAD] = torch.nan
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    gpu = {"device": "cuda:0", "max_sequences": 4, "kv_tokens": 16 * 16}
    prompts = [[3, 9, 4, 100], [3, 9, 4, 50]]
    with engines(target, draft, **gpu) as engine:  # type: ignore[arg-type]
        expected = collect(engine.submit(prompts[0], 24, sampling=sampling))[0]
        for _ in range(6):
            link = BadLink({}, VOCAB, seed=1)
            plan = DraftPlan(link=link, ticket="", mode=spec.MODE_DOMINO, draft_tokens=3)
            before = graphs(engine).num_graph
            first = engine.submit(prompts[0], 24, sampling=sampling)
            failing = engine.submit(prompts[1], 24, sampling=sampling, plan=plan)
            second = engine.submit(prompts[0], 24, sampling=sampling)
            with pytest.raises(InternalError, match="NaN or infinite"):
                collect(failing)
            assert [collect(first)[0], collect(second)[0]] == [expected] * 2
            assert graphs(engine).num_graph - before >= 2 * 23 + 1
