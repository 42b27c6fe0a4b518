"""Beginnings of users' turns in, whole turns out that the target itself goes on with.

A chat model has seen users' turns as well as answers: sampled from it, they are of the kind it was
made for, and there are as many as wanted (Xu et al., "Magpie", 2024).
"""

import random
import re
from collections.abc import Callable, Iterator, Sequence

from router.tokenizer import Tokenizer
from training.generate import Limits
from training.regenerate import regenerate
from training.target import BatchTarget

WITHOUT_BEGINNING = 0.25  # share of turns that are the target's from the first word
LONGEST_BEGINNING = 24  # words
SHORTEST, LONGEST = 12, 1200  # characters of a turn


def beginnings(texts: Sequence[str], count: int, seed: int) -> Iterator[str]:
    """The first words of randomly drawn texts, half of one at most; some empty."""
    draw = random.Random(seed)
    for _ in range(count):
        text = draw.choice(texts)
        ends = [match.end() for match in re.finditer(r"\S+", text)]
        words = min(LONGEST_BEGINNING, len(ends) // 2)
        none = draw.random() < WITHOUT_BEGINNING
        yield "" if none or not words else text[: ends[draw.randint(1, words) - 1]]


def own_prompts(
    target: BatchTarget,
    tokenizer: Tokenizer,
    begun: Sequence[str],
    limits: Limits,
    report: Callable[[str], None] = lambda _: None,
) -> Iterator[str]:
    """Finished turns of a moderate length, each once; limits.temperature above 0 varies them."""
    opened = [_open(target, tokenizer, text) for text in begun]
    seen: set[str] = set()
    for answer in regenerate(target, opened, limits, report=report):
        text = (begun[answer.prompt] + tokenizer.decode(answer.tokens)).strip()
        if answer.ended and SHORTEST <= len(text) <= LONGEST and text not in seen:
            seen.add(text)
            yield text


def _open(target: BatchTarget, tokenizer: Tokenizer, text: str) -> list[int]:
    """A user's turn that has not ended yet."""
    ids = tokenizer.encode_chat([{"role": "user", "content": text}])
    stops = set(target.config.eos_token_ids)
    last = max(i for i, token in enumerate(ids) if token in stops)
    return ids[:last]
