"""Speculative output is plain output, token for token, on tiny models and arbitrary acceptance."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from domino_cli.in_process import InProcess, collect
from domino_serve.v1 import speculation_pb2 as spec
from tests.engines import MODES, OracleLink, engines
from tests.tiny_models import VOCAB, write_draft, write_target
from verify_service.sequence import DraftPlan

GOLDEN = Path(__file__).parent.parent / "golden"
BLOCK = 8
Prompt = list[int]
prompts = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=60)


@pytest.fixture(scope="module")
def random_engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcess]:
    """A random target with a random draft, whose proposals are nearly always wrong."""
    target, draft = tmp_path_factory.mktemp("target"), tmp_path_factory.mktemp("draft")
    write_target("qwen3", target)
    write_draft(target, draft, block_size=BLOCK, domino=True, shift=True)
    with engines(target, draft, prefill_tokens=16) as running:
        yield running


@pytest.fixture(scope="module")
def trained_engines() -> Iterator[InProcess]:
    """The recorded pair: a tiny target and a Domino draft trained on it, mixed acceptance."""
    draft = GOLDEN / "f2_domino_generate_shift"
    with engines(GOLDEN / "target_qwen3_tiny", draft, page_size=16) as running:
        yield running


def plain(running: InProcess, prompt: Prompt, count: int) -> list[int]:
    return collect(running.submit(prompt, count))[0]


@pytest.mark.parametrize("mode", ["dflash", "domino"])
@pytest.mark.parametrize("draft_tokens", range(1, BLOCK + 1))
def test_every_width_of_a_trained_draft(
    trained_engines: InProcess, mode: str, draft_tokens: int
) -> None:
    """Widths change the shape of every matrix product; an order of summation must not leak out."""
    prompt = [177, 112, 108, 141, 92]  # the first recorded case
    expected = plain(trained_engines, prompt, 64)
    ids, done = collect(
        trained_engines.submit(prompt, 64, mode=MODES[mode], draft_tokens=draft_tokens)
    )
    assert ids == expected
    if mode == "domino":
        assert done.speculation.accepted_tokens > 0, "nothing accepted, nothing tested"


@pytest.mark.parametrize("batch", [1, 3, 8])
def test_staggered_batches_of_mixed_modes(trained_engines: InProcess, batch: int) -> None:
    """Requests that join and leave at different steps share one target pass and one draft pass."""
    cases = [([3 + i, 60 + 7 * i, 9] * (1 + i % 4), 20 + 9 * i) for i in range(batch)]
    alone = [plain(trained_engines, prompt, count) for prompt, count in cases]
    events = [
        trained_engines.submit(
            prompt, count, mode=list(MODES.values())[i % 3], draft_tokens=(0, 7, 5)[i % 3]
        )
        for i, (prompt, count) in enumerate(cases)
    ]
    assert [collect(event)[0] for event in events] == alone


@settings(max_examples=20, deadline=None)
@given(prompt=prompts, tokens=st.integers(1, BLOCK), mode=st.sampled_from(["dflash", "domino"]))
def test_a_bad_draft_changes_nothing(
    random_engines: InProcess, prompt: Prompt, tokens: int, mode: str
) -> None:
    """Rejected proposals leave KV behind that the next step must overwrite or never read."""
    expected = plain(random_engines, prompt, 24)
    drafted = random_engines.submit(prompt, 24, mode=MODES[mode], draft_tokens=tokens)
    assert collect(drafted)[0] == expected


@settings(max_examples=30, deadline=None)
@given(
    cases=st.lists(
        st.tuples(prompts, st.integers(1, 40), st.integers(1, 15)), min_size=1, max_size=5
    ),
    seed=st.integers(0, 2**32),
)
def test_any_pattern_of_acceptance(
    random_engines: InProcess, cases: list[tuple[Prompt, int, int]], seed: int
) -> None:
    """Every accepted length, at every offset to pages and caps; the link checks the bookkeeping."""
    right = {
        str(i): prompt + plain(random_engines, prompt, count + 16)
        for i, (prompt, count, _) in enumerate(cases)
    }
    link = OracleLink(right, VOCAB, seed)
    events = []
    for index, (prompt, count, tokens) in enumerate(cases):
        plan = DraftPlan(link=link, ticket=str(index), mode=spec.MODE_DOMINO, draft_tokens=tokens)
        events.append(random_engines.submit(prompt, count, plan=plan))
    for index, (prompt, count, _) in enumerate(cases):
        ids, done = collect(events[index])
        assert ids == right[str(index)][len(prompt) : len(prompt) + count]
        stats = done.speculation
        assert stats.step_tokens == count - 1
        assert stats.verify_steps + stats.accepted_tokens >= stats.step_tokens
        assert stats.accepted_tokens == sum(stats.accepted_by_position)
