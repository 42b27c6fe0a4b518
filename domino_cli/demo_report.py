"""The demo's measurements as a table for people and as JSON for programs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from domino_cli.ask import Answer


@dataclass(frozen=True, kw_only=True, slots=True)
class Arm:
    """All prompts answered in one mode; `identical` per prompt, compared with AR."""

    mode: str
    answers: tuple[Answer, ...]
    identical: tuple[bool, ...] = ()

    @property
    def tokens_per_s(self) -> float:
        """All completion tokens over the sum of the requests' times."""
        tokens = sum(answer.completion.completion_tokens for answer in self.answers)
        return tokens / sum(answer.total_s for answer in self.answers)

    @property
    def acceptance_length(self) -> float:
        """Total tokens over total verify steps, the bonus token included."""
        parts = [answer.completion.speculation for answer in self.answers]
        steps = sum(part.verify_steps for part in parts)
        return sum(part.step_tokens for part in parts) / steps if steps else 1.0

    @property
    def width(self) -> int:
        return max(answer.completion.speculation.width for answer in self.answers)

    @property
    def ttft_ms(self) -> float:
        """Mean over the prompts."""
        return 1e3 * sum(answer.ttft_s for answer in self.answers) / len(self.answers)


def as_table(arms: Sequence[Arm], num_prompts: int) -> str:
    """Mode, width, tokens/s, acceptance length, TTFT, and whether each answer equals AR's."""
    head = ["mode", "width", "tokens/s", "vs AR", "acceptance length", "TTFT ms"]
    head += [f"prompt {number}" for number in range(1, num_prompts + 1)] + ["identical"]
    rows = [head, *(row(arm, arms[0]) for arm in arms)]
    widths = [max(len(line[column]) for line in rows) for column in range(len(head))]
    lines = [
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        for line in rows
    ]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n" + "\n".join(lines)


def row(arm: Arm, reference: Arm) -> list[str]:
    return [
        arm.mode,
        str(arm.width),
        f"{arm.tokens_per_s:.1f}",
        f"{arm.tokens_per_s / reference.tokens_per_s:.2f}x",
        f"{arm.acceptance_length:.2f}",
        f"{arm.ttft_ms:.0f}",
        *map(yes_no, arm.identical),
        yes_no(all(arm.identical)),
    ]


def yes_no(value: bool) -> str:
    return "yes" if value else "NO"


def as_json(arms: Sequence[Arm], prompts: Sequence[str]) -> dict[str, Any]:
    return {
        "prompts": list(prompts),
        "identical": all(all(arm.identical) for arm in arms),
        "modes": [
            {
                "mode": arm.mode,
                "width": arm.width,
                "tokens_per_s": arm.tokens_per_s,
                "acceptance_length": arm.acceptance_length,
                "ttft_ms": arm.ttft_ms,
                "identical": list(arm.identical),
                "answers": [answer.as_json() for answer in arm.answers],
            }
            for arm in arms
        ],
    }
