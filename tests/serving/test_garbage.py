"""Searches for garbage: 0.2 s of all requests' time where they look through torch and models."""

import gc
import subprocess
import sys
import weakref
from collections.abc import Iterator

import pytest

from serving.garbage import settle

START = {
    "sync": """
from serving.server import Server
server = Server("s", host="127.0.0.1", port=0, grace_s=0)
server.start()
server.ready()
count()
server.stop()
""",
    "aio": """
import asyncio
from serving.aio_server import AioServer
async def main():
    server = AioServer("s", host="127.0.0.1", port=0, grace_s=0)
    await server.start()
    await server.ready()
    count()
    await server.grpc.stop(None)
asyncio.run(main())
""",
}
COUNT = """
import gc, sys
def count():
    print(gc.get_freeze_count(), len(gc.get_objects()), file=sys.stderr)
"""


@pytest.fixture
def restored() -> Iterator[None]:
    """Of this process' own objects."""
    yield
    gc.unfreeze()


@pytest.mark.parametrize("stack", START)
def test_a_server_that_is_ready_searches_what_requests_made(stack: str) -> None:
    """A search of everything that was imported and loaded, again and again, while serving."""
    code = COUNT + START[stack]
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    left_out, searched = map(int, ran.stderr.splitlines()[-1].split())
    assert left_out > 10_000 and searched < 1000


class Node:
    """Part of a cycle, as engines and their graphs are."""

    def __init__(self) -> None:
        self.itself = self


@pytest.mark.usefixtures("restored")
def test_what_was_replaced_is_found_again() -> None:
    """An updated draft's old weights, which a search that leaves them out keeps for good."""
    node = Node()
    gone = weakref.ref(node)
    settle()
    del node
    gc.collect()
    assert gone() is not None, "left out"
    settle()
    assert gone() is None
