"""Requests whose answers are known beforehand, asked while services die; nothing may differ."""

import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import verify_service.load
from domino_cli.in_process import InProcess, collect
from domino_client import Client, RequestArgs
from serving.errors import ServingError
from tests.recorded_models import PROMPTS, TARGET, VOCAB
from verify_service.config import VerifyConfig
from verify_service.sampling import SamplingParams

TIMEOUT_S = 120.0  # a hang becomes an error
Pick = Callable[[], Client]


@dataclass(frozen=True, slots=True)
class Case:
    """A request and its answer."""

    args: RequestArgs
    expected: tuple[int, ...]


@dataclass(slots=True)
class Answer:
    """What came of a case; times are those of its chunks."""

    case: Case
    ids: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    error: ServingError | None = None
    completion: Any = None

    @property
    def is_identical(self) -> bool:
        """Finished with the expected ids, each once; the last message agrees with the chunks."""
        done = self.completion
        return (
            done is not None
            and tuple(self.ids) == self.case.expected == done.token_ids
            and done.completion_tokens == len(self.ids)
        )

    @property
    def is_wrong(self) -> bool:
        """Other ids than expected, even if an error ended it."""
        begun = self.case.expected[: len(self.ids)]
        return tuple(self.ids) != begun or not (self.error or self.is_identical)

    def ran_at(self, moment: float) -> bool:
        return bool(self.times) and self.times[0] < moment < self.times[-1]

    def longest_gap(self, after: float, before: float) -> float:
        """Between two chunks, in a stretch of time."""
        pairs = zip(self.times, self.times[1:], strict=False)
        gaps = [late - early for early, late in pairs if early < before and late > after]
        return max(gaps, default=0.0)


def known_cases(count: int, seed: int, *, max_tokens: int = 160) -> list[Case]:
    """Greedy and sampled ones in turn, answered by plain decoding in this process."""
    rng = random.Random(seed)
    options = VerifyConfig(target=TARGET, threads=1, page_size=16)
    cases = []
    with InProcess(verify_service.load.load(options)) as plain:
        for index in range(count):
            # What the draft was trained on, and what it cannot know.
            noise = [rng.randrange(VOCAB) for _ in range(rng.choice((0, 0, 17, 60)))]
            prompt = PROMPTS[index % len(PROMPTS)] + noise
            tokens = rng.randrange(max_tokens // 2, max_tokens)
            sampling = SamplingParams(temperature=0.8, seed=index) if index % 2 else None
            ids, _ = collect(plain.submit(prompt, tokens, sampling=sampling))
            args = RequestArgs(token_ids=prompt, max_tokens=tokens, ignore_eos=True, mode="domino")
            if sampling:
                args |= RequestArgs(temperature=0.8, seed=index)
            cases.append(Case(args, tuple(ids)))
    return cases


def ask(client: Client, case: Case, told: Callable[[Answer], None] = lambda answer: None) -> Answer:
    """Runs a case to its end; `told` is called with every chunk."""
    answer = Answer(case)
    stream = client.stream(**(case.args | RequestArgs(timeout_s=TIMEOUT_S)))
    try:
        for chunk in stream:
            answer.ids += chunk.token_ids
            answer.times.append(time.monotonic())
            told(answer)
        answer.completion = stream.completion
    except ServingError as error:
        answer.error = error
    return answer


def wave(
    client: Client, cases: Sequence[Case], after_chunks: int, strike: Callable[[], float]
) -> tuple[list[Answer], float]:
    """All cases at once; `strike` runs when so many chunks have come. Answers and its moment."""
    chunks, due, lock = 0, threading.Event(), threading.Lock()

    def count(_: Answer) -> None:
        nonlocal chunks
        with lock:
            chunks += 1
            if chunks >= after_chunks:
                due.set()

    with ThreadPoolExecutor(len(cases)) as pool:
        running = [pool.submit(ask, client, case, count) for case in cases]
        assert due.wait(TIMEOUT_S), "the requests ended before the strike"
        moment = strike()
        return [future.result() for future in running], moment


class Traffic:
    """Cases asked one after another by some threads, until told to stop; a context manager."""

    def __init__(self, pick: Pick, cases: Sequence[Case], threads: int, seed: int) -> None:
        self.answers: list[Answer] = []
        self._pick, self._cases, self._stop = pick, cases, threading.Event()
        rngs = [random.Random(seed + index) for index in range(threads)]
        self._threads = [threading.Thread(target=self._run, args=(rng,)) for rng in rngs]

    def __enter__(self) -> "Traffic":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def wrong(self) -> list[Answer]:
        return [answer for answer in self.answers if answer.is_wrong]

    def failed(self) -> list[Answer]:
        return [answer for answer in self.answers if answer.error]

    def _run(self, rng: random.Random) -> None:
        while not self._stop.is_set():
            self.answers.append(ask(self._pick(), rng.choice(self._cases)))
