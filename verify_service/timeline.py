"""Where each engine step's time goes: laps of the loop in, bounded records of the last steps out.

Filled by verify_service.engine; written as JSON at the end, for `domino-serve bench timeline`.
"""

import json
import time
from collections import deque
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from domino_serve.v1 import draft_pb2
from verify_service.metrics import STEP
from verify_service.scheduler import Work

KEPT_STEPS = 20_000  # a few MB; sums count every step


@dataclass(slots=True, kw_only=True)
class Step:
    """One step; times in nanoseconds, began_ns on the monotonic clock.

    plan: admission and scheduling. verify: the target's pass, choice of tokens included. commit:
    acceptance and emitting. send: row gathering and serialising. wait: from there to the draft's
    answer, taken. draft_*: the draft's own times within that wait; the rest of it is the hop. Of a
    pass that began before its lap, the target's or the draft's, what was left counts.
    """

    began_ns: int = 0
    sequences: int = 0
    positions: int = 0
    prompt_positions: int = 0
    tokens: int = 0
    waiting: int = 0
    plan_ns: int = 0
    verify_ns: int = 0
    commit_ns: int = 0
    send_ns: int = 0
    wait_ns: int = 0
    draft_queue_ns: int = 0
    draft_append_ns: int = 0
    draft_backbone_ns: int = 0
    draft_rollout_ns: int = 0

    @property
    def total_ns(self) -> int:
        """The whole step; the draft's own times lie within the wait."""
        return self.plan_ns + self.verify_ns + self.commit_ns + self.send_ns + self.wait_ns


class StepClock:
    """Times the laps of one step: plan, verify, commit, send, wait."""

    def __init__(self, waiting: int) -> None:
        self._last = time.monotonic_ns()
        self._step = Step(began_ns=self._last, waiting=waiting)

    def planned(self, work: Seq[Work]) -> None:
        """The plan is made; counts it."""
        self.lap("plan")
        self._step.sequences = len(work)
        self._step.positions = sum(len(item.ids) for item in work)
        prompts = (item for item in work if item.sequence.in_prefill)
        self._step.prompt_positions = sum(len(item.ids) for item in prompts)
        self._step.tokens = -_tokens(work)

    def committed(self, work: Seq[Work]) -> None:
        """The tokens are out; counts them."""
        self._step.tokens += _tokens(work)
        self.lap("commit")

    def lap(self, name: str) -> int:
        """Nanoseconds since the lap before, added to `name`_ns."""
        now = time.monotonic_ns()
        took, self._last = now - self._last, now
        setattr(self._step, f"{name}_ns", getattr(self._step, f"{name}_ns") + took)
        return took

    def end(self, drafts: Iterable[draft_pb2.DraftTimings]) -> Step:
        """The drafts have answered; their own times, of several the sum, lie within the wait."""
        self.lap("wait")
        step = self._step
        for timings in drafts:
            step.draft_queue_ns += timings.queue_ns
            step.draft_append_ns += timings.append_ns
            step.draft_backbone_ns += timings.backbone_ns
            step.draft_rollout_ns += timings.rollout_ns
        return step


class Timeline:
    """The last KEPT_STEPS steps and the sums of all; one writer, the engine's thread."""

    def __init__(self, kept: int = KEPT_STEPS) -> None:
        self.steps: deque[Step] = deque(maxlen=kept)
        self.count = 0
        self.sums = dict.fromkeys((f.name for f in fields(Step)), 0)
        del self.sums["began_ns"]

    def add(self, step: Step) -> None:
        STEP.observe(step.total_ns / 1e9)
        self.steps.append(step)
        self.count += 1
        for name in self.sums:
            self.sums[name] += getattr(step, name)

    def write(self, file: Path) -> None:
        """{"count", "sums" of all steps, "steps": the last ones}."""
        found = {"count": self.count, "sums": self.sums, "steps": [asdict(s) for s in self.steps]}
        file.write_text(json.dumps(found) + "\n")


def _tokens(work: Seq[Work]) -> int:
    """Tokens of the sequences so far, prompts included."""
    return sum(len(item.sequence.tokens) for item in work)
