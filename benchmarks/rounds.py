"""Runs arms prompt by prompt, so that a machine that slows down meanwhile slows all arms alike."""

import time
from collections.abc import Iterator, Sequence
from typing import TypeVar

from benchmarks.arms import Arm, ServiceArm
from benchmarks.sample import Prompt, Sample, throughput
from domino_cli.progress import Say
from domino_client import Client
from serving.contract import ModeName

Item = TypeVar("Item")
DRAFTING: tuple[ModeName, ...] = ("dflash", "domino")


def rotated(arms: Sequence[Item], by: int) -> Iterator[Item]:
    """All arms, another one first each time: none always runs on what the same other one left."""
    yield from (arms[(i + by) % len(arms)] for i in range(len(arms)))


def run_rounds(
    arms: Sequence[Arm], prompts: Sequence[Prompt], max_tokens: int, say: Say
) -> list[Sample]:
    """Every prompt by every arm; after each prompt a line of speeds and the time that is left."""
    begin = time.perf_counter()
    samples: list[Sample] = []
    for number, prompt in enumerate(prompts, start=1):
        found = {arm: arm.answer(prompt, max_tokens) for arm in rotated(arms, number)}
        samples += found.values()
        speeds = ", ".join(f"{label(arm)} {found[arm].tokens_per_s:.1f}" for arm in arms)
        left_s = (time.perf_counter() - begin) / number * (len(prompts) - number)
        say(
            f"{number}/{len(prompts)} {prompt.workload}[{prompt.index}]: {speeds} tokens/s; "
            f"{minutes(left_s)} left"
        )
    return samples


def label(arm: Arm) -> str:
    return f"{arm.name}@{arm.width}" if arm.width > 1 else arm.name


def sweep_arms(client: Client, widths: Sequence[int], *, adaptive: bool) -> list[Arm]:
    """Plain decoding, and both drafting modes at every width."""
    drafting = [
        ServiceArm(client, mode, width, adaptive=adaptive) for mode in DRAFTING for width in widths
    ]
    return [ServiceArm(client, "ar"), *drafting]


def best_widths(samples: Sequence[Sample]) -> dict[ModeName, int]:
    """Per drafting mode, the width with the most tokens per second over the sweep's prompts."""

    def speed(mode: ModeName, width: int) -> float:
        return throughput([s for s in samples if (s.arm, s.width) == (mode, width)])

    widths = {mode: sorted({s.width for s in samples if s.arm == mode}) for mode in DRAFTING}
    return {mode: max(found, key=lambda w: speed(mode, w)) for mode, found in widths.items()}


def expected_s(samples: Sequence[Sample], arms: Sequence[Arm], tokens: int) -> float:
    """Seconds for `tokens` tokens by each arm, at the speeds of the sweep."""
    found = [[s for s in samples if (s.arm, s.width) == (arm.name, arm.width)] for arm in arms]
    return sum(tokens / throughput(of_arm) for of_arm in found)


def minutes(seconds: float) -> str:
    return f"{seconds / 60:.1f} min"
