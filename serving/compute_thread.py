"""The one thread of a process that computes, from loading a model to its last step."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class ComputeThread:
    """Runs jobs one after another.

    OpenMP keeps a pool of workers for each thread that computes; a model loaded by one thread and
    run by another was 40% slower (2 cores, one row of the embedded target, 44 against 62 ms).
    """

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = SimpleQueue()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def start(self, job: Callable[[], T]) -> "Future[T]":
        """Queues a job."""
        future: Future[T] = Future()
        self._jobs.put((job, future))
        return future

    def run(self, job: Callable[[], T]) -> T:
        """Runs a job and returns what it returns, or raises what it raises."""
        return self.start(job).result()

    def _run(self) -> None:
        while True:
            job, future = self._jobs.get()
            try:
                future.set_result(job())
            except BaseException as error:
                future.set_exception(error)
            del job, future  # what they hold would live until the next job


class Runs(Protocol):
    """Where jobs are run."""

    def run(self, job: Callable[[], T]) -> T:
        """What the job returns, or raises."""
        ...


class Here:
    """Runs jobs in the thread that asks: a GPU's steps need no thread of their own, and waking one
    takes longer than some of them. `prepare` comes before each job."""

    def __init__(self, prepare: Callable[[], object]) -> None:
        self._prepare = prepare

    def run(self, job: Callable[[], T]) -> T:
        self._prepare()
        return job()
