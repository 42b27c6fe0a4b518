"""Answers by the target itself: a draft has to predict what its target says, not what others do."""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from training.dataset import Document
from training.generate import Generator, Limits
from training.target import BatchTarget

LEAST_ANSWER = 8  # tokens; shorter ones have hardly a block


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """prompt: its place among the prompts. tokens: of the answer; ended: its stop id is there."""

    prompt: int
    tokens: list[int]
    ended: bool


def regenerate(
    target: BatchTarget,
    prompts: Sequence[Sequence[int]],
    limits: Limits,
    *,
    seconds: float = float("inf"),
    report: Callable[[str], None] = lambda _: None,
) -> Iterator[Answered]:
    """Prompts of like length together, batches in random order, until all are answered or the time
    is up. Prompts longer than limits.prompt are left out.
    """
    fitting = [i for i, p in enumerate(prompts) if 0 < len(p) <= limits.prompt]
    fitting.sort(key=lambda i: len(prompts[i]))
    batches = [fitting[i : i + limits.rows] for i in range(0, len(fitting), limits.rows)]
    random.Random(0).shuffle(batches)
    most = max(map(len, batches), default=1)
    generator = Generator(target, replace(limits, rows=most), target.config.eos_token_ids)
    began, tokens, slowest = time.monotonic(), 0, 0.0
    for done, batch in enumerate(batches):
        took = time.monotonic() - began
        if took + slowest > seconds:
            break
        answers = generator.answers([prompts[i] for i in batch])
        slowest = max(slowest, time.monotonic() - began - took)
        tokens += sum(map(len, answers))
        speed = tokens / (time.monotonic() - began)
        report(f"answers: batch {done + 1}/{len(batches)}, {tokens} tokens, {speed:.0f} tokens/s")
        for index, answer in zip(batch, answers, strict=True):
            ended = answer[-1] in target.config.eos_token_ids
            yield Answered(prompt=index, tokens=answer, ended=ended)


def document(prompt: Sequence[int], answer: Sequence[int]) -> Document:
    """The answer supervised, its end of turn included; the prompt not."""
    supervised = [False] * len(prompt) + [True] * len(answer)
    return Document.of([*prompt, *answer], supervised)
