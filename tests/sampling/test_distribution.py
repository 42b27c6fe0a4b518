"""Speculation keeps the target's distribution: accepted, corrected and bonus tokens are counted
over thousands of seeded draws and tested against transformers' model and processors.

The seeds are fixed, so that a test passes or fails for ever. P_LIMIT is the chance of counts so
far off if all is well.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator

import pytest

from domino_cli.in_process import InProcess, collect
from domino_serve.v1 import draft_pb2
from domino_serve.v1 import speculation_pb2 as spec
from tests.engines import OracleLink, engines
from tests.sampling.oracle import Context, Distribution, Oracle, given, p_value
from tests.tiny_models import VOCAB, write_draft, write_target
from verify_service.sampling import SamplingParams
from verify_service.sequence import DraftPlan

PROMPT = (17, 4, 99, 4)
DRAWS, AT_ONCE = 3200, 80
TEMPERATURE, TOP_K, TOP_P = 0.6, 6, 0.98
P_LIMIT = 1e-3

Groups = dict[str, dict[Context, Counter[int]]]


class BestGuess(OracleLink):
    """Proposes what is most probable after the prompt and the current token."""

    def __init__(self, oracle: Oracle) -> None:
        super().__init__({}, VOCAB, 0)
        self._oracle = oracle

    def guess(self, current: int, count: int) -> tuple[int, ...]:
        context: Context = (*PROMPT, current)
        for _ in range(count):
            context += (self._oracle.best(context),)
        return context[len(PROMPT) + 1 :]

    def _propose(self, step: draft_pb2.SessionStep) -> list[int]:
        return list(self.guess(step.current, step.draft_tokens))


def draws(running: InProcess, link: BestGuess) -> tuple[list[list[int]], int]:
    """Four tokens after PROMPT for each seed; how many proposals were accepted in all."""
    completions, accepted = [], 0
    for first in range(0, DRAWS, AT_ONCE):
        events = []
        for seed in range(first, first + AT_ONCE):
            params = SamplingParams(temperature=TEMPERATURE, top_k=TOP_K, top_p=TOP_P, seed=seed)
            plan = DraftPlan(link=link, ticket="", mode=spec.MODE_DOMINO, draft_tokens=2)
            events.append(running.submit(PROMPT, 4, sampling=params, plan=plan))
        for event in events:
            ids, done = collect(event)
            completions.append(ids)
            accepted += done.speculation.accepted_tokens
    return completions, accepted


def by_kind(completions: list[list[int]], link: BestGuess) -> Groups:
    """Tokens of each request's first speculative step, by kind and context.

    "accept" counts 1 for an accepted and 0 for a rejected proposal.
    """
    groups: Groups = defaultdict(lambda: defaultdict(Counter))
    for first, *rest in completions:
        context: Context = (*PROMPT, first)
        groups["prefill"][PROMPT][first] += 1
        for token, proposal in zip(rest, link.guess(first, 2), strict=False):
            groups["accept"][context][int(token == proposal)] += 1
            if token != proposal:
                groups["corrected"][context][token] += 1
                break
            context += (token,)
        else:
            groups["bonus"][context][rest[2]] += 1
    return groups


def expected(kind: str, context: Context, oracle: Oracle) -> Distribution:
    after = oracle.after(context)
    best = oracle.best(context)
    if kind == "accept":
        return {1: after[best], 0: 1 - after[best]}
    if kind == "corrected":
        return given(after, after.keys() - {best})
    return after


@pytest.fixture(scope="module")
def sampled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Groups, Oracle, Oracle]]:
    """Counts, the oracle they should follow, and one twice as warm."""
    target, draft = tmp_path_factory.mktemp("target"), tmp_path_factory.mktemp("draft")
    model = write_target("qwen3", target)
    write_draft(target, draft, block_size=4, domino=True, shift=True)
    oracle = Oracle(model, TEMPERATURE, TOP_K, TOP_P)
    link = BestGuess(oracle)
    with engines(target, draft, page_size=16) as running:
        completions, accepted = draws(running, link)
    assert accepted > DRAWS / 4
    yield by_kind(completions, link), oracle, Oracle(model, TEMPERATURE * 2, TOP_K, TOP_P)


@pytest.mark.parametrize("kind", ["prefill", "accept", "corrected", "bonus"])
def test_tokens_follow_the_targets_distribution(
    sampled: tuple[Groups, Oracle, Oracle], kind: str
) -> None:
    """A rejected proposal drawn again, a bonus from the wrong row: right-looking, wrong odds."""
    groups, oracle, _ = sampled
    counted = groups[kind]
    assert sum(counts.total() for counts in counted.values()) > DRAWS / 10
    assert p_value([(n, expected(kind, c, oracle)) for c, n in counted.items()]) > P_LIMIT


@pytest.mark.parametrize("kind", ["prefill", "accept", "corrected", "bonus"])
def test_the_test_has_teeth(sampled: tuple[Groups, Oracle, Oracle], kind: str) -> None:
    """So many draws have to tell one temperature from twice that."""
    groups, _, warmer = sampled
    counted = groups[kind]
    assert p_value([(n, expected(kind, c, warmer)) for c, n in counted.items()]) < P_LIMIT
