"""What a load test asks: a workload's name or a dataset's path in, conversations out."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from benchmarks.packages import read
from benchmarks.workloads import WORKLOADS, json_lines, load
from domino_cli.errors import UsageError
from loadtest.dataset import read_dataset

RANDOM = "random"
NAMES = (*WORKLOADS, RANDOM)


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadPrompt:
    """A conversation: the user's turns, each asked after the answer to the last one; or token ids.

    index: place in the workload, which arms share.
    """

    workload: str
    index: int
    turns: tuple[str, ...] = ()
    token_ids: tuple[int, ...] = ()


class Served(Protocol):
    """What random ids must fit: a router's ModelInfo, or a target's own config."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def max_context(self) -> int: ...
    @property
    def eos_token_ids(self) -> Sequence[int]: ...


def workload_prompts(name: str, count: int | None) -> list[LoadPrompt]:
    """The first `count` prompts of a packaged workload, or all; MT-Bench with both turns.

    Raises UsageError for an unknown name or too high a count, CommandError without the package.
    """
    if name not in WORKLOADS:
        raise UsageError(f"workload: {name!r} is unknown; known: {', '.join(NAMES)}")
    rows = conversations(name, count)
    return [LoadPrompt(workload=name, index=i, turns=turns) for i, turns in enumerate(rows)]


def conversations(name: str, count: int | None) -> Iterator[tuple[str, ...]]:
    """Turns of each prompt of a known workload."""
    file = WORKLOADS[name].file
    available = len(WORKLOADS[name].prompts(read(file)))
    firsts = load(name, available if count is None else count)
    if name != "mt-bench":
        return ((text,) for text in firsts)
    rows = json_lines(read(file))
    return (tuple(row["turns"]) for row in rows[: len(firsts)])


def dataset_prompts(path: Path, count: int | None) -> list[LoadPrompt]:
    """The first `count` rows of a file, or all of them; UsageError names a bad line."""
    rows = read_dataset(path, count)
    if count is not None and count > len(rows):
        raise UsageError(f"num_prompts: {count}, but {path} has {len(rows)}")
    return [
        LoadPrompt(workload=path.stem, index=i, turns=row.turns, token_ids=row.token_ids)
        for i, row in enumerate(rows)
    ]


def random_prompts(count: int, length: int, seed: int, served: Served) -> list[LoadPrompt]:
    """Uniform ids of the served vocabulary, end-of-sequence ids left out; the same for a seed."""
    if not 1 <= length < served.max_context:
        raise UsageError(f"random_input_len: {length} is not in 1..{served.max_context - 1}")
    generator = random.Random(seed)
    ids = [i for i in range(served.vocab_size) if i not in served.eos_token_ids]
    return [
        LoadPrompt(workload=RANDOM, index=i, token_ids=tuple(generator.choices(ids, k=length)))
        for i in range(count)
    ]


def label(workload: str) -> str:
    """A workload's title for tables; a dataset's own name."""
    if workload == "mt-bench":
        return "MT-Bench"
    return WORKLOADS[workload].title if workload in WORKLOADS else workload


def requests_of(prompts: Sequence[LoadPrompt]) -> int:
    """Requests that the prompts make, one a turn."""
    return sum(max(1, len(prompt.turns)) for prompt in prompts)
