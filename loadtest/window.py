"""What was in flight when: the steady part of a run, and Little's law over it."""

from collections.abc import Sequence
from dataclasses import dataclass

from loadtest.record import Record

SHORTEST_SHARE = 0.2  # of the run; a shorter steady part says nothing


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """Seconds since the measurement began."""

    start_s: float
    end_s: float

    @property
    def length_s(self) -> float:
        return self.end_s - self.start_s


def whole(records: Sequence[Record]) -> Window:
    """From the first sending to the last end; records are not empty."""
    return Window(
        start_s=min(r.sent_s for r in records), end_s=max(r.sent_s + r.end_s for r in records)
    )


def steady(records: Sequence[Record], concurrency: int | None) -> Window | None:
    """While the load was full: once `concurrency` were sent, until the last was sent.

    concurrency: None in open loop. None when that is too short a part of the run.
    """
    sent = sorted(r.sent_s for r in records)
    first = (concurrency or 1) - 1
    if first >= len(sent):
        return None
    found = Window(start_s=sent[first], end_s=sent[-1])
    return found if found.length_s >= SHORTEST_SHARE * whole(records).length_s else None


def tokens_in(records: Sequence[Record], window: Window) -> int:
    """Tokens that arrived in the window, those of requests still running at its end included."""
    return sum(
        count
        for r in records
        for at, count in zip(r.token_times_s, r.token_counts, strict=True)
        if window.start_s < r.sent_s + at <= window.end_s
    )


def mean_in_flight(records: Sequence[Record], window: Window) -> float:
    """Time integral of the requests in flight over the window: L of Little's law."""
    overlaps = (min(r.done_s, window.end_s) - max(r.sent_s, window.start_s) for r in records)
    return sum(max(0.0, overlap) for overlap in overlaps) / window.length_s


def most_in_flight(records: Sequence[Record]) -> int:
    """At any one time."""
    changes = sorted([(r.sent_s, 1) for r in records] + [(r.done_s, -1) for r in records])
    now = most = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return most


def peak_tokens_per_s(records: Sequence[Record]) -> float:
    """Most tokens that arrived in one second of the run, counted from its start."""
    seconds: dict[int, int] = {}
    for r in records:
        for at, count in zip(r.token_times_s, r.token_counts, strict=True):
            second = int(r.sent_s + at)
            seconds[second] = seconds.get(second, 0) + count
    return float(max(seconds.values(), default=0))
