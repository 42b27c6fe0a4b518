"""What the draft service counts and times; docs/observability.md explains each."""

from collections.abc import Sized
from typing import TYPE_CHECKING, Final

from domino_serve.v1 import draft_pb2
from serving.metrics import STEP_S, Counter, Gauge, Histogram

if TYPE_CHECKING:
    from draft_service.seats import Seats

SESSIONS: Final = Gauge("domino_draft_num_sessions", "Open sessions")
RESERVED: Final = Gauge("domino_draft_num_seats_reserved", "Seats reserved and not opened yet")
KV_USED: Final = Gauge(
    "domino_draft_kv_cache_usage_perc", "Share of draft KV pages held by seats, 0 to 1"
)
IDLE_CHECKS: Final = Counter(
    "domino_draft_idle_checks_total", "Times that the last seat was given back and pages were free"
)
STREAMS: Final = Gauge("domino_draft_streams", "Verify services that are connected")
STEP: Final = Histogram(
    "domino_draft_step_duration_seconds", "One message of a verify service, queue included", STEP_S
)
PHASE_S: Final = Counter(
    "domino_draft_step_phase_seconds_total", "Time of the engine's steps by phase", "phase"
)
ROWS: Final = Counter("domino_draft_rows_total", "Projected rows that came for draft KV")
EARLY: Final = Counter(
    "domino_draft_early_steps_total", "Steps of sessions that had begun before they were asked for"
)
PROPOSED: Final = Counter("domino_draft_draft_tokens_total", "Draft tokens proposed")
ERRORS: Final = Counter(
    "domino_draft_session_errors_total", "Steps and openings refused to a session", "reason"
)
STALE: Final = Counter(
    "domino_draft_stale_drops_total", "Session errors about an older step or another context"
)

_STALE = draft_pb2.SESSION_ERROR_REASON_STALE


def watch_streams(streams: Sized) -> None:
    """Shows how many there are."""
    STREAMS.watch(lambda: len(streams))


def watch_seats(seats: "Seats") -> None:
    """Shows these seats; they are read from outside their lock, a moment's figures."""
    pages = seats.allocator
    SESSIONS.watch(lambda: seats.num_open)
    RESERVED.watch(lambda: seats.num_reserved)
    KV_USED.watch(lambda: 1 - pages.num_free / pages.num_pages)


def count_step(request: draft_pb2.StepRequest, response: draft_pb2.StepResponse) -> None:
    """One exchange, once it is answered; what is told early is none."""
    if request.HasField("early"):
        return
    timings = response.timings
    phases = {
        "queue": timings.queue_ns,
        "append": timings.append_ns,
        "backbone": timings.backbone_ns,
        "rollout": timings.rollout_ns,
    }
    for phase, took_ns in phases.items():
        PHASE_S.inc(phase, by=took_ns / 1e9)
    STEP.observe(sum(phases.values()) / 1e9)
    ROWS.inc(by=sum(step.num_rows for step in request.steps))
    PROPOSED.inc(by=sum(len(result.proposals.ids) for result in response.results))
    for result in response.results:
        if result.HasField("error"):
            name = draft_pb2.SessionErrorReason.Name(result.error.reason)
            ERRORS.inc(name.removeprefix("SESSION_ERROR_REASON_").lower())
            STALE.inc(by=result.error.reason == _STALE)
