"""Messages from a group's first rank to the others, and the end of all when one of them ends.

A connection that breaks before the word that ends it means that a process is gone. The others may
be waiting for it inside a collective, where nothing else would tell them, so the process ends.
"""

import logging
import os
import queue
import secrets
import threading
from collections.abc import Callable
from multiprocessing.connection import Client, Connection, Listener

import torch.distributed as dist

from serving.ranks import Ranks

END, STEP = b"end", b"step"  # how a message begins

log = logging.getLogger(__name__)


def end_process(reason: str) -> None:
    """Ends this process with exit code 1, whatever its threads wait for."""
    log.critical("%s; the group cannot go on, this process ends", reason)
    logging.shutdown()
    os._exit(1)


class Followers:
    """The first rank's side."""

    def __init__(self, ranks: Ranks, on_loss: Callable[[str], None] = end_process) -> None:
        """Waits until all others are connected. `on_loss` is called from another thread."""
        key = secrets.token_bytes(32)
        address = (os.environ.get("MASTER_ADDR", "127.0.0.1"), 0)
        with Listener(address, backlog=ranks.size, authkey=key) as listener:
            dist.broadcast_object_list([listener.address, key])
            self._links = [listener.accept() for _ in range(1, ranks.size)]
        self._on_loss, self._ended = on_loss, False
        for link in self._links:
            threading.Thread(target=self._watch, args=(link,), daemon=True).start()

    def send_bytes(self, message: bytes) -> None:
        """To all; a broken connection is the watching thread's matter."""
        self._send(STEP + message)

    def end(self) -> None:
        """Lets the others end."""
        self._ended = True
        self._send(END)

    def _send(self, message: bytes) -> None:
        for link in self._links:
            try:
                link.send_bytes(message)
            except OSError:
                log.error("a rank is not reached")

    def _watch(self, link: "Connection[bytes, bytes]") -> None:
        rank = "?"
        try:
            rank = link.recv_bytes().decode()
            link.recv_bytes()
        except (OSError, EOFError):
            if not self._ended:
                self._on_loss(f"rank {rank} is gone")


class Leader:
    """Another rank's side: the first rank's messages in order."""

    def __init__(self, ranks: Ranks, on_loss: Callable[[str], None] = end_process) -> None:
        told: list[object] = [None, None]
        dist.broadcast_object_list(told)
        address, key = told
        assert isinstance(address, tuple) and isinstance(key, bytes), "as Followers tells"
        self._link = Client(address, authkey=key)
        self._link.send_bytes(str(ranks.rank).encode())
        self._on_loss = on_loss
        self._messages: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def next_bytes(self) -> bytes | None:
        """Waits for a message; None is the end."""
        return self._messages.get()

    def _read(self) -> None:
        try:
            while (message := self._link.recv_bytes()) != END:
                self._messages.put(message.removeprefix(STEP))
            self._messages.put(None)
        except (OSError, EOFError):
            self._on_loss("rank 0 is gone")
