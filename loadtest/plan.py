"""What one load test does; written as JSON for the locust process, and kept beside its records."""

import json
import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

from domino_cli.errors import UsageError
from loadtest.prompts import LoadPrompt
from serving.contract import ModeName

WARM_UP_TOKENS = 32  # as SGLang's program: enough to reach every kernel


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """One arm at one load.

    mode, draft_tokens: None leaves them to the server. concurrency: requests kept in flight in
    closed loop; request_rate: requests a second in open loop, sent whatever is in flight.
    run_time_s: send for so long, prompts over again, instead of each once. chat: prompts pass
    through the target's chat template. Everything in flight at the end is waited for.
    """

    address: str
    prompts: tuple[LoadPrompt, ...]
    concurrency: int = 1
    request_rate: float | None = None
    run_time_s: float | None = None
    mode: ModeName | None = None
    draft_tokens: int | None = None
    max_tokens: int = 256
    ignore_eos: bool = False
    chat: bool = True
    warm_ups: int = 0
    timeout_s: float = 600.0
    seed: int = 42

    def __post_init__(self) -> None:
        for name in ("concurrency", "max_tokens"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name}: {getattr(self, name)}; must be at least 1")
        if self.warm_ups < 0:
            raise UsageError(f"warm_ups: {self.warm_ups}; must not be negative")
        for name in ("request_rate", "run_time_s"):
            value = getattr(self, name)
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise UsageError(f"{name}: {value}; must be above 0 and finite")
        if not self.prompts:
            raise UsageError("prompts: there are none")

    @property
    def is_open_loop(self) -> bool:
        return self.request_rate is not None

    def save(self, file: Path) -> None:
        file.write_text(json.dumps(asdict(self)))

    @classmethod
    def load(cls, file: Path) -> Self:
        values: dict[str, Any] = json.loads(file.read_text())
        prompts = tuple(
            LoadPrompt(
                workload=p["workload"],
                index=p["index"],
                turns=tuple(p["turns"]),
                token_ids=tuple(p["token_ids"]),
            )
            for p in values.pop("prompts")
        )
        return cls(prompts=prompts, **values)

    def settings(self) -> dict[str, Any]:
        """All but the prompts' texts, for results. The template decides about thinking."""
        found = asdict(replace(self, prompts=self.prompts[:1]))
        del found["prompts"]
        return {**found, "num_prompts": len(self.prompts), "thinking": "template default"}
