"""A target and a draft whose steps take known times, for policies that choose widths by them."""

import random
from collections.abc import Sequence as Seq

from tests.verify.test_width_policy import a_sequence
from verify_service.step_table import StepCost, StepTable
from verify_service.table_width import TableWidth
from verify_service.timeline import Step

MOST, WIDTHS, BATCHES = 15, (1, 8, 16), (1, 8, 32, 64, 128)
PER_POSITION = 40e-9  # seconds: 150 KB a position at 4 TB/s, as Qwen3-8B's in bfloat16


def target_seconds(batch: int, width: int, positions: int) -> float:
    """An 8B target on an H200: weights are read once, from 256 rows on it computes."""
    return max(4.1e-3, batch * width * 20e-6) + 0.1e-3 + positions * PER_POSITION


TABLE = StepTable(
    {
        (b, w): StepCost(seconds=target_seconds(b, w, 0), per_position=PER_POSITION)
        for b in BATCHES
        for w in WIDTHS
    }
)


def draft_seconds(batch: int, draft_tokens: int) -> float:
    return 0.6e-3 + 0.04e-3 * draft_tokens + 0.05e-3 * batch if draft_tokens else 0.0


def speed(rates: Seq[float], batch: int, context: int, draft_tokens: int) -> float:
    """Tokens a second of one fixed width, by the formula."""
    reached, tokens = 1.0, 1.0
    for rate in rates[:draft_tokens]:
        reached *= rate
        tokens += reached
    seconds = target_seconds(batch, 1 + draft_tokens, batch * context)
    return batch * tokens / (seconds + draft_seconds(batch, draft_tokens))


class Machine:
    """Sequences of an acceptance, on this target and draft. While drafts rest one more plain step
    runs already: a draft that wakes waits for it. num_wasted: those that proposals came too soon
    for."""

    def __init__(self, policy: TableWidth, batch: int, context: int) -> None:
        self.policy, self.batch, self.context, self.asked = policy, batch, context, 0
        self.sequences = [a_sequence() for _ in range(batch)]
        self.draw, self.num_wasted = random.Random(0), 0
        self._rests = self._has_run = False  # drafts rest; the step has run in the last one's wait

    def run(self, rates: Seq[float], steps: int, opening_s: float = 0.0) -> tuple[list[int], float]:
        """Draft tokens of each step; tokens a second. opening_s: what the first step takes more."""
        chosen, tokens, seconds = [], 0, 0.0
        for number in range(steps):
            emitted = 0
            for sequence in self.sequences:
                accepted = 0
                while accepted < self.asked and self.draw.random() < rates[accepted]:
                    accepted += 1
                sequence.history.add(self.asked, accepted)
                sequence.kv_len = self.context
                emitted += accepted + 1
            plain = target_seconds(self.batch, 1, self.batch * self.context)
            took = target_seconds(self.batch, self.asked + 1, self.batch * self.context)
            took = 0.0 if self._has_run else took + (opening_s if number == 0 else 0.0)
            step = Step(sequences=self.batch, positions=self.batch * (self.asked + 1))
            self.asked, is_wasted = self._asked()
            waited = draft_seconds(self.batch, self.asked)
            waited += plain if is_wasted or self._has_run else 0.0
            step.verify_ns, step.wait_ns = int(took * 1e9), int(waited * 1e9)
            self.policy.observe(step)
            chosen.append(self.asked)
            tokens, seconds = tokens + emitted, seconds + took + waited
        return chosen, tokens / seconds

    def _asked(self) -> tuple[int, bool]:
        """Proposals asked for now, and whether the step that runs already is in vain."""
        asked, rested = self.policy.draft_tokens(self.sequences), self._rests
        self._rests, self._has_run = not asked, rested and self.policy.wakes
        is_wasted = rested and asked > 0 and not self.policy.wakes
        self.num_wasted += is_wasted
        return 0 if self.policy.wakes else asked, is_wasted
