"""Steps of a timeline in, a Chrome trace out, which Perfetto reads; never more than MOST_STEPS."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

MOST_STEPS = 5_000  # of the last ones: some 8 MB of JSON, which viewers still take
VERIFY, DRAFT = 1, 2
LAPS = ("plan", "verify", "commit", "send", "wait")
DRAFT_PARTS = ("queue", "append", "backbone", "rollout")
Event = dict[str, Any]


def trace(steps: Sequence[Mapping[str, int]]) -> dict[str, Any]:
    """Two tracks: the verify service's laps, and the draft's own times within the wait.

    The clocks of two machines are not compared: the draft's parts stand in the middle of the
    wait, with half of the hop before and half behind.
    """
    last = steps[-MOST_STEPS:]
    first_ns = last[0]["began_ns"] if last else 0
    named = [thread_name(VERIFY, "verify step"), thread_name(DRAFT, "draft")]
    events = [event for step in last for event in step_events(step, first_ns)]
    return {"displayTimeUnit": "ms", "traceEvents": [*named, *events]}


def step_events(step: Mapping[str, int], first_ns: int) -> Iterator[Event]:
    at = step["began_ns"] - first_ns
    for lap in LAPS:
        took = step[f"{lap}_ns"]
        counts = ("sequences", "positions", "prompt_positions", "tokens", "waiting")
        args = {name: step[name] for name in counts} if lap == "verify" else {}
        yield event(VERIFY, lap, at, took, args)
        at += took
    parts = {name: step[f"draft_{name}_ns"] for name in DRAFT_PARTS}
    hop = max(0, step["wait_ns"] - sum(parts.values()))
    at += hop // 2 - step["wait_ns"]
    for name, took in parts.items():
        if took:
            yield event(DRAFT, name, at, took, {})
        at += took


def event(thread: int, name: str, at_ns: int, took_ns: int, args: Mapping[str, int]) -> Event:
    found = {"name": name, "ph": "X", "pid": 1, "tid": thread, "ts": at_ns / 1e3}
    return {**found, "dur": took_ns / 1e3, "args": dict(args)}


def thread_name(thread: int, name: str) -> Event:
    return {"name": "thread_name", "ph": "M", "pid": 1, "tid": thread, "args": {"name": name}}
