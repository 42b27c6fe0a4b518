"""The embedded pair as engines in one process, float32, loaded once for all tests that fit."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from domino_cli.in_process import InProcess
from router.tokenizer import Tokenizer
from tests.engines import engines

QUESTIONS = (
    "What is the capital of France, and what is it known for?",
    "Tom has 3 boxes with 12 pencils each and gives away 7 pencils. How many are left?",
    "Write a Python function that returns the n-th Fibonacci number.",
)


@pytest.fixture(scope="session")
def prompts(embedded_target: Path) -> list[list[int]]:
    """Three chats as token ids."""
    tokenizer = Tokenizer.load(embedded_target)
    return [tokenizer.encode_chat([{"role": "user", "content": text}]) for text in QUESTIONS]


@pytest.fixture(scope="session")
def embedded_engines(embedded_target: Path, embedded_draft: Path) -> Iterator[InProcess]:
    with engines(embedded_target, embedded_draft, page_size=128, threads=2) as running:
        yield running
