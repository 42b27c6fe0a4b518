"""Weights that give NaN or infinity for one token: its requests fail, nobody else notices."""

import math
import queue
from collections.abc import Iterator

import pytest
from safetensors.torch import load_file, save_file

from domino_cli.in_process import InProcess, collect
from domino_serve.v1 import speculation_pb2 as spec
from serving.errors import InternalError
from tests.engines import engines
from tests.tiny_models import write_draft, write_target
from verify_service.sampling import SamplingParams
from verify_service.sequence import Event

BAD = 77
PAGE = 16
CLEAN = [[3, 9, 4, 100, 12], list(range(20, 60))]
SAMPLED = SamplingParams(temperature=0.8, seed=5)


@pytest.fixture(scope="module", params=[math.nan, math.inf], ids=str)
def running(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[InProcess]:
    """A target with one bad embedding row, and pages for a few requests only."""
    target, draft = tmp_path_factory.mktemp("target"), tmp_path_factory.mktemp("draft")
    write_target("qwen3", target)
    file = target / "model.safetensors"
    tensors = load_file(file)
    tensors["model.embed_tokens.weight"][BAD] = request.param
    save_file(tensors, file, metadata={"format": "pt"})
    write_draft(target, draft, block_size=4, domino=True, shift=True)
    with engines(target, draft, page_size=PAGE, kv_tokens=16 * PAGE, prefill_tokens=8) as both:
        yield both


@pytest.mark.parametrize("place", [0, 11, 29], ids=["first", "middle", "last"])
@pytest.mark.parametrize("mode", [spec.MODE_AR, spec.MODE_DOMINO], ids=["ar", "domino"])
@pytest.mark.parametrize("sampling", [None, SAMPLED], ids=["greedy", "sampled"])
def test_only_the_request_itself_fails(
    running: InProcess, place: int, mode: spec.Mode.ValueType, sampling: SamplingParams | None
) -> None:
    """A step that fails as a whole ends everybody; a page left with NaN ends whoever gets it."""

    def start(prompt: list[int]) -> "queue.SimpleQueue[Event]":
        drafted = 3 if mode == spec.MODE_DOMINO else 0
        return running.submit(prompt, 24, mode=mode, draft_tokens=drafted, sampling=sampling)

    expected = [collect(start(prompt))[0] for prompt in CLEAN]
    bad = list(range(10, 40))
    bad[place] = BAD
    first, failing, second = start(CLEAN[0]), start(bad), start(CLEAN[1])
    with pytest.raises(InternalError, match="NaN or infinite at or before position"):
        collect(failing)
    assert [collect(first)[0], collect(second)[0]] == expected
    again = [start(CLEAN[i % 2]) for i in range(6)]  # on the pages of the one that failed too
    assert [collect(events)[0] for events in again] == expected * 3
