"""Answers by the verify engine itself: prompts in, the target's greedy continuation out.

On a CPU this is the fastest way (kernels in C, continuous batching); on a GPU training.regenerate
advances thousands of rows as one graph. Next: training.answer_journal.
"""

import queue
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import wait
from dataclasses import dataclass
from pathlib import Path

import verify_service.load
from domino_serve.v1 import speculation_pb2 as spec
from domino_serve.v1 import verify_pb2
from serving.compute_thread import ComputeThread
from serving.errors import ServingError
from training.regenerate import Answered
from verify_service.config import VerifyConfig
from verify_service.engine import Engine
from verify_service.sequence import Event, Request

PAGE = 64
Events = queue.SimpleQueue[tuple[int, Event]]


@dataclass(frozen=True, slots=True)
class Failed:
    """A prompt that got no answer, and why."""

    prompt: int
    reason: str


def engine_answers(
    target: Path,
    prompts: Sequence[Sequence[int]],
    wanted: Sequence[int],
    *,
    rows: int,
    new: int,
    device: str,
    dtype: str,
    tick: Callable[[int], None] = lambda tokens: None,
) -> Iterator[Answered | Failed]:
    """Answers of up to `new` tokens to the prompts whose places are `wanted`, `rows` at a time, in
    the order in which they end. tick: is told of all tokens so far whenever there are more."""
    longest = max((len(prompts[i]) for i in wanted), default=1) + new
    config = VerifyConfig(
        target=target,
        device=device,
        dtype=dtype,  # type: ignore[arg-type]
        max_sequences=rows,
        max_waiting=rows,
        page_size=PAGE,
        kv_tokens=rows * -(-longest // PAGE) * PAGE,
    )
    compute = ComputeThread("answers-engine")
    loaded = _loaded(compute, config)
    stops = frozenset(loaded.info.eos_token_ids)
    loaded.engine.start(compute=compute)
    events: Events = queue.SimpleQueue()
    try:
        waiting = deque(wanted)
        running: dict[int, list[int]] = {}
        total = 0
        while waiting or running:
            while waiting and len(running) < 2 * rows:
                place = waiting.popleft()
                running[place] = []
                _submit(loaded.engine, place, prompts[place], new, stops, events)
            place, event = events.get()
            if isinstance(event, verify_pb2.VerifyChunk):
                running[place].extend(event.token_ids)
                tick(total := total + len(event.token_ids))
            else:
                yield _ended(place, event, running.pop(place))
    finally:
        loaded.engine.stop()


def _loaded(compute: ComputeThread, config: VerifyConfig) -> verify_service.load.Loaded:
    loading = compute.start(lambda: verify_service.load.load(config))
    try:
        return loading.result()
    except KeyboardInterrupt:
        wait([loading])  # an interpreter that ends while a thread is in native code aborts
        raise


def _submit(
    engine: Engine,
    place: int,
    prompt: Sequence[int],
    new: int,
    stops: frozenset[int],
    events: Events,
) -> None:
    request = Request(
        request_id=str(place),
        prompt_ids=list(prompt),
        max_tokens=new,
        stop_ids=stops,
        emit=lambda event: events.put((place, event)),
    )
    try:
        engine.submit(request)
    except ServingError as error:
        events.put((place, error))


def _ended(place: int, event: Event, tokens: list[int]) -> Answered | Failed:
    if isinstance(event, ServingError):
        return Failed(place, str(event))
    assert isinstance(event, verify_pb2.VerifyComplete), "scores are for Score"
    ended = event.finish_reason == spec.FINISH_REASON_STOP
    return Answered(prompt=place, tokens=tokens, ended=ended)
