"""A tiny target on disk and three-process stacks of it, for what needs real services fast."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from domino_cli.gguf_convert import convert
from domino_cli.stack import Stack, StackConfig
from tests.cli.tiny_gguf import tiny_weights, write_gguf


@pytest.fixture(scope="session")
def tiny_target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A one-layer llama with random weights and a ten-token vocabulary."""
    folder = tmp_path_factory.mktemp("tiny_target")
    source = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_gguf(source, tiny_weights())
    convert(source, folder, lambda done, total: None)
    return folder


@pytest.fixture(scope="module")
def tiny_router(tiny_target: Path) -> Iterator[str]:
    """Address of a router in front of the tiny target; plain decoding."""
    with Stack(StackConfig(target=tiny_target)) as stack:
        yield stack.router_address
