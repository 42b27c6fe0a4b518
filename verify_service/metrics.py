"""What the verify service counts and times; docs/observability.md explains each."""

from collections import Counter as Counts
from typing import TYPE_CHECKING, Final

from serving.metrics import STEP_S, Counter, Gauge, Histogram, Reading, Total
from serving.transport.plane import NAMES

if TYPE_CHECKING:
    from verify_service.draft_links import DraftLinks
    from verify_service.engine import Engine

PHASES: Final = (
    "plan", "verify", "commit", "send", "wait",
    "draft_queue", "draft_append", "draft_backbone", "draft_rollout",
)  # fmt: skip

RUNNING: Final = Gauge("domino_verify_num_requests_running", "Sequences in the running batch")
WAITING: Final = Gauge("domino_verify_num_requests_waiting", "Requests in the queue")
KV_USED: Final = Gauge("domino_verify_kv_cache_usage_perc", "Share of KV pages in use, 0 to 1")
PREEMPTIONS: Final = Total(
    "domino_verify_num_preemptions_total", "Sequences whose pages were taken for older ones"
)
STEPS: Final = Total("domino_verify_steps_total", "Engine steps, each of a whole batch")
PHASE_S: Final = Total(
    "domino_verify_step_phase_seconds_total",
    "Time of the engine's steps by phase; draft_* are the drafts' own times within wait",
    "phase",
)
STEP: Final = Histogram(
    "domino_verify_step_duration_seconds", "An engine step, the wait for the draft included", STEP_S
)
PROMPT_TOKENS: Final = Total(
    "domino_verify_prompt_tokens_total", "Prompt positions run, repeated ones included"
)
GENERATION_TOKENS: Final = Total("domino_verify_generation_tokens_total", "Tokens committed")
EAGER: Final = Counter(
    "domino_verify_eager_steps_total", "On a GPU, sequence-steps that no CUDA graph ran"
)
STALE: Final = Counter(
    "domino_verify_stale_drops_total", "Blocks dropped because they came for an older prefix"
)
DRAFT_LOST: Final = Counter(
    "domino_verify_draft_lost_total", "Requests that went on without their draft, by cause", "cause"
)
DRAFT_LOST.show("link", "refused", "fault")
DRAFT_RECOVERED: Final = Counter(
    "domino_verify_draft_recovered_total", "Requests that got a draft again, or late"
)
WAITING_FOR_DRAFT: Final = Gauge(
    "domino_verify_requests_waiting_for_draft",
    "Requests that are plain until a draft has a seat",
)
IDLE_CHECKS: Final = Total(
    "domino_verify_idle_checks_total", "Times that nothing ran and every page was found free"
)
LINKS: Final = Gauge(
    "domino_verify_draft_links", "Streams to draft services that there were, by state", "state"
)
LINK_PLANES: Final = Gauge(
    "domino_verify_draft_link_plane",
    "1 for each living stream to a draft service, by how its rows travel",
    "draft",
    "plane",
)
ROWS: Final = Counter("domino_verify_rows_total", "Rows sent to drafts, by how they went", "plane")
ROWS.show("inline", "shm", "cuda-ipc", "nccl")
SESSIONS: Final = Gauge("domino_verify_draft_sessions", "Running requests that are drafted for")


def watch(engine: "Engine", links: "DraftLinks") -> None:
    """Shows this engine's figures; they are read from outside its thread."""
    scheduler, timeline = engine.scheduler, engine.timeline
    pages, sums = scheduler.allocator, timeline.sums
    RUNNING.watch(lambda: len(scheduler.running))
    WAITING.watch(lambda: max(engine.num_live() - len(scheduler.running), 0))
    KV_USED.watch(lambda: 1 - pages.num_free / pages.num_pages)
    PREEMPTIONS.watch(lambda: scheduler.num_preempted)
    STEPS.watch(lambda: timeline.count)
    IDLE_CHECKS.watch(lambda: engine.idle_checks)
    PHASE_S.source = lambda: {(phase,): sums[f"{phase}_ns"] / 1e9 for phase in PHASES}
    PROMPT_TOKENS.watch(lambda: sums["prompt_positions"])
    GENERATION_TOKENS.watch(lambda: sums["tokens"])
    SESSIONS.watch(lambda: sum(bool(s.draft) for s in list(scheduler.running)))
    LINKS.source = lambda: _links(links)
    LINK_PLANES.source = lambda: {
        (address, NAMES[link.plane]): 1 for address, link in links.items() if link.alive
    }


def _links(links: "DraftLinks") -> Reading:
    states = Counts("alive" if link.alive else "broken" for _, link in links.items())
    return {("alive",): states["alive"], ("broken",): states["broken"]}
