"""The width of each step on a GPU, where the target's steps have known costs.

As verify_service.width_policy's AutoWidth, but only widths that have graphs are asked for, and what
the target costs is read from a StepTable: by batch, width and context, so that drafting stops at
the very batch and length where it no longer pays. Drafts and the host are learnt while serving,
width by width.
Halves take turns (verify_service.halves) where two half steps take less time than target and draft.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence as Seq
from typing import Final, Literal

from verify_service.mode_acceptance import ModeAcceptance, most_frequent_mode
from verify_service.sequence import Sequence
from verify_service.step_table import StepTable
from verify_service.timeline import Step
from verify_service.waits import Waits

EVERY: Final = 8  # steps between two choices
GAIN: Final = 1.02  # by how much another width must be better to be taken
PLAIN_GAIN: Final = 1.01  # and plain decoding, which no draft is to be slower than
LOOKED_AT: Final = 16  # sequences whose own acceptance counts; the others are taken for alike
# Plain steps between two looks whether drafts pay again, a sequence and in all: one costs as much
# as 17 of them at 64 sequences, most of it for the rows that the draft lacks by then.
FIRST_PROBE_EACH, FIRST_PROBE, LAST_PROBE = 16, 512, 8192
PROBE_STEPS, PROBED = 4, 16  # steps of a look, and of single sequences in it, at least
TRIES: Final = 4  # drafted steps of each width one after another, at a mode's first
# Answers of a mode's drafts before plain decoding is taken, which would stay until the next look: a
# lone sequence's few are luck.
KNOWN: Final = 64
SMOOTHING: Final = 0.1
OUTLIER: Final = 3.0  # times the expected: another process had the device, or pages were compiled

PingPong = Literal["off", "auto", "always"]
Choice = tuple[int, bool]  # draft tokens, and whether halves take turns


class TableWidth:
    """A mode's first drafted steps try every width; then a choice every few steps.

    Steps of several modes count as the most frequent one's.
    """

    def __init__(self, table: StepTable, most: int, *, ping_pong: PingPong = "off") -> None:
        """most: draft tokens at most. ping_pong: when `halves` is set."""
        self.halves, self._ping_pong = ping_pong == "always", ping_pong
        self.wakes = False
        self._table = table
        self._choices = sorted({0, most, *(w - 1 for w in table.widths if w <= most)})
        self._untried: dict[int, list[int]] = {}
        self._acceptance = ModeAcceptance(most, hopeful=False)
        self._drafts: defaultdict[tuple[int, int], Waits] = defaultdict(Waits)
        # Seconds beside the graph, and what of it had run before its lap began: only whole steps
        # start early, in halves the host's work and both sides' messages come to each one.
        self._beside: defaultdict[Choice, float] = defaultdict(float)
        self._looks: Counter[Choice] = Counter()
        self._answers: Counter[int] = Counter()  # by mode
        self._current = most
        self._mode = self._drafted = self._running = self._context = self._chosen_for = 0
        self._steps = self._plain_steps = self._probing = 0
        self._ran_halves = False  # the step that is observed next
        self._width = 0  # of the step observed last
        self._probe_after = FIRST_PROBE

    def draft_tokens(self, sequences: Seq[Sequence]) -> int:
        self._ran_halves = self.halves
        if not self._current and len(sequences) == self._running and (self._steps + 1) % EVERY:
            self._steps += 1  # between two choices a plain step costs no look at its sequences
            self._plain_steps += 1
            return 0
        drafted = [s for s in sequences if s.draft and not s.in_prefill]
        self._drafted = len(drafted)
        if not drafted or self.wakes:
            self.wakes = False
            return self._current
        rested = not self._current
        self._mode = most_frequent_mode(drafted)
        self._running, self._context = len(sequences), sum(s.kv_len for s in sequences)
        untried = self._untried.setdefault(
            self._mode, [choice for choice in self._choices[1:] for _ in range(TRIES)]
        )
        self._steps += 1
        if self._current:
            self._answers[self._mode] += len(drafted)
            self._acceptance.remember(drafted if untried else drafted[:LOOKED_AT])
        if untried:
            self._take((untried.pop(), False))
            self._chosen_for = len(drafted)
        elif self._probing > 1:
            self._probing -= 1
        elif self._probing or self._steps % EVERY == 0 or self._is_other(len(drafted)):
            self._probing = 0
            self._choose(drafted, len(sequences))
        self._plain_steps = 0 if self._current else self._plain_steps + 1
        self.wakes = rested and self._current > 0 and not self.halves
        return self._current

    def observe(self, step: Step) -> None:
        if step.prompt_positions or not step.sequences:
            return
        width = -(-step.positions // step.sequences)
        choice = width - 1, self._ran_halves
        goes_on = width == self._width
        self._width = 0 if self.wakes else width  # the next step runs in this one's wait
        context = self._context * step.sequences // max(self._running, 1)
        known = self._table.seconds(step.sequences, width, context)
        own = (step.plan_ns + step.verify_ns + step.commit_ns) / 1e9
        waited = (step.send_ns + step.wait_ns) / 1e9
        own += waited if self._ran_halves else 0.0
        # The first of a width did not start early; a burst's first step, which is plain, opens
        # its sessions too.
        if goes_on and own < OUTLIER * known + self._beside[choice]:
            self._looks[choice] += 1
            weight = max(SMOOTHING, 1 / self._looks[choice])
            self._beside[choice] += weight * (own - known - self._beside[choice])
        asked = self._current > 0 and not self.wakes
        if self._drafted and asked and not (self.halves or self._ran_halves):
            self._drafts[self._mode, self._current].add(self._drafted, waited)

    def _choose(self, drafted: Seq[Sequence], sequences: int) -> None:
        """The most expected tokens a second; the current choice where it is close."""
        self._chosen_for = len(drafted)
        speeds = self._speeds(drafted, sequences)
        if self._answers[self._mode] < KNOWN:
            speeds = {choice: value for choice, value in speeds.items() if choice[0]}
        best = max(speeds, key=lambda choice: speeds[choice])
        gain = GAIN if best[0] else PLAIN_GAIN
        if speeds[best] > gain * speeds.get((self._current, self.halves), 0.0):
            self._take(best)
        probe_after = max(self._probe_after, FIRST_PROBE_EACH * sequences)
        if self._current:
            self._probe_after = FIRST_PROBE
        elif self._plain_steps >= probe_after:
            self._take(max((c for c in speeds if c[0]), key=lambda choice: speeds[choice]))
            self._probing = max(PROBE_STEPS, PROBED // len(drafted))
            self._probe_after = min(2 * probe_after, LAST_PROBE)

    def _is_other(self, drafted: int) -> bool:
        """Whether so many are no batch that the last choice was made for."""
        return 4 * abs(drafted - self._chosen_for) > self._chosen_for

    def _take(self, choice: Choice) -> None:
        self._current, halves = choice
        self.halves = halves or self._ping_pong == "always"

    def _speeds(self, drafted: Seq[Sequence], sequences: int) -> dict[Choice, float]:
        """Tokens a second by draft tokens, in whole steps and in halves."""
        expected = self._acceptance.expected(drafted[:LOOKED_AT])
        share, plain = len(drafted) / len(expected), sequences - len(drafted)
        split = self._ping_pong == "auto" and len(drafted) > 1
        found = {}
        for choice in self._choices:
            tokens = plain + share * sum(of_one[choice] for of_one in expected)
            whole = choice, self._ping_pong == "always"
            verify, draft = self._seconds(sequences, len(drafted), whole, self._context)
            found[whole] = tokens / max(verify + draft, 1e-9)
            if split and choice:
                half = -(-sequences // 2), -(-len(drafted) // 2)
                verify, draft = self._seconds(*half, (choice, True), self._context // 2)
                found[choice, True] = tokens / max(2 * max(verify, draft), 1e-9)
        return found

    def _seconds(
        self, sequences: int, drafted: int, choice: Choice, context: int
    ) -> tuple[float, float]:
        """Of the target with the host's work, and of the draft."""
        tokens, _ = choice
        beside = self._beside[choice]
        if not self._looks[choice]:  # halves not seen yet
            beside = max(self._beside[tokens, False], 0.0)
        verify = self._table.seconds(sequences, 1 + tokens, context) + beside
        return verify, self._drafts[self._mode, tokens](drafted) if tokens else 0.0
