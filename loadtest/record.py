"""One request as the client saw it: raw times and counts, a JSON object a line; never rounded.

Written by loadtest.locustfile, read by loadtest.summary. Locust's own statistics are rounded.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from domino_cli.errors import CommandError


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """Times in seconds. sent_s, scheduled_s: since the measurement began; a warm-up has none.

    token_times_s: arrival of each chunk since sending, token_counts: its tokens. end_s: the
    stream's end since sending. answer: hash of the token ids. error: why it failed, or None.
    """

    workload: str
    index: int
    turn: int
    sent_s: float
    scheduled_s: float
    token_times_s: tuple[float, ...]
    token_counts: tuple[int, ...]
    end_s: float
    prompt_tokens: int = 0
    finish_reason: str = ""
    answer: str = ""
    mode: str = ""
    width: int = 0
    verify_steps: int = 0
    plain_steps: int = 0
    step_tokens: int = 0
    proposed_tokens: int = 0
    accepted_tokens: int = 0
    accepted_by_position: tuple[int, ...] = ()
    queue_ms: float = 0.0
    verify_ms: float = 0.0
    draft_ms: float = 0.0
    error: str | None = None

    @property
    def key(self) -> tuple[str, int, int]:
        """What the same request of another arm shares."""
        return self.workload, self.index, self.turn

    @property
    def ok(self) -> bool:
        return self.error is None

    @property
    def tokens(self) -> int:
        """Tokens received."""
        return sum(self.token_counts)

    @property
    def ttft_s(self) -> float:
        return self.token_times_s[0]

    @property
    def e2e_s(self) -> float:
        """From sending to the last token, as SGLang's and vLLM's programs take it."""
        return self.token_times_s[-1]

    @property
    def done_s(self) -> float:
        """When the stream ended, since the measurement began."""
        return self.sent_s + self.end_s

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        lists = ("token_times_s", "token_counts", "accepted_by_position")
        return cls(**{**value, **{name: tuple(value[name]) for name in lists}})


def to_line(record: Record) -> str:
    return json.dumps(asdict(record)) + "\n"


def read_records(file: Path) -> list[Record]:
    """All records of a file; a last line cut off by a crash is left out."""
    try:
        lines = file.read_text().split("\n")
    except OSError as error:
        raise CommandError(f"{file}: {error.strerror}") from error
    found = [line for line in lines[:-1] if line]
    return [Record.from_json(json.loads(line)) for line in found]
