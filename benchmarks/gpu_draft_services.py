"""The draft service's ranks on GPUs, end to end: one rank's proposals, the target's own answers.

`python -m benchmarks.gpu_draft_services --target T --draft D --json FILE` starts, for each dtype, a
stack with one draft process and one with --draft-tp 2, asks the demo's prompts plainly and drafted,
then kills a rank of the draft while a request runs: the stream must go on, the group must end. The
target is `--deterministic`, so that its answers do not depend on how many tokens it verifies, and
its width fixed, so that it always drafts.
"""

import argparse
import json
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from benchmarks import services_check
from domino_cli.demo import PROMPTS
from domino_cli.stack import Stack, StackConfig
from domino_client import ChatTurn, Client, Completion
from domino_client.request import RequestArgs
from serving.contract import ModeName

MODES: tuple[ModeName, ...] = ("ar", "dflash", "domino")
VICTIMS = {"float32": "draft-rank1", "bfloat16": "draft"}  # which rank is killed
WAIT_S = 30.0


@dataclass(slots=True)
class Place:
    """A running stack and the last lines of its services."""

    dtype: str
    ranks: int
    stack: Stack
    log: deque[str] = field(default_factory=deque)


@contextmanager
def placed(options: argparse.Namespace) -> Iterator[list[Place]]:
    """All stacks, started at the same time: starting is what takes long."""
    places = []
    for dtype in options.dtypes:
        for ranks in (1, options.draft_tp):
            log: deque[str] = deque()
            config = StackConfig(
                target=options.target, draft=options.draft, device=options.device, dtype=dtype,
                kv_tokens=16384, max_sequences=8, deterministic=True, width_policy="fixed",
                draft_tp=ranks,
            )  # fmt: skip
            stack = Stack(config, say=log.append)
            places.append(Place(dtype=dtype, ranks=ranks, stack=stack, log=log))
    with ExitStack() as running, ThreadPoolExecutor(len(places)) as starting:
        for place in places:
            running.callback(place.stack.stop)
        list(starting.map(lambda place: place.stack.__enter__(), places))
        yield places


def answers(place: Place, max_tokens: int) -> dict[ModeName, list[Completion]]:
    """Every mode's to every prompt."""
    with Client(place.stack.router_address) as client:
        return {
            mode: [_ask(client, prompt, mode, max_tokens) for prompt in PROMPTS] for mode in MODES
        }


def _ask(client: Client, prompt: str, mode: ModeName, max_tokens: int) -> Completion:
    turns: list[ChatTurn] = [{"role": "user", "content": prompt}]
    return client.generate(chat=turns, mode=mode, max_tokens=max_tokens)


def row(place: Place, found: dict[ModeName, list[Completion]], mode: ModeName) -> dict[str, Any]:
    """How many answers are the plain ones, and what was accepted."""
    plain, drafted = found["ar"], found[mode]
    same = sum(a.token_ids == b.token_ids for a, b in zip(drafted, plain, strict=True))
    steps = sum(answer.speculation.verify_steps for answer in drafted)
    tokens = sum(answer.speculation.step_tokens for answer in drafted)
    return {
        "dtype": place.dtype,
        "draft_ranks": place.ranks,
        "mode": mode,
        "equal": same,
        "answers": len(drafted),
        "acceptance_length": round(tokens / steps, 3) if steps else 1.0,
        "accepted_by_position": [list(a.speculation.accepted_by_position) for a in drafted],
    }


def lost_rank(place: Place, max_tokens: int) -> dict[str, Any]:
    """A rank killed in a request: seconds until all of the draft has ended, and the answer."""
    victim, pids = VICTIMS[place.dtype], place.stack.pids()
    names = [name for name in pids if name.startswith("draft")]
    prompt, args = "Once upon a time", RequestArgs(max_tokens=max_tokens, ignore_eos=True)
    plain, drafted = RequestArgs(**args, mode="ar"), RequestArgs(**args, mode="domino")
    with Client(place.stack.router_address) as client, ThreadPoolExecutor(1) as watching:
        wanted = client.generate(prompt, **plain).token_ids
        with client.stream(prompt, **drafted) as stream:
            chunks = iter(stream)
            before = sum(len(next(chunks).token_ids) for _ in range(10))
            os.kill(pids[victim], signal.SIGKILL)
            ended = watching.submit(seconds_until_ended, [pids[name] for name in names])
            for _ in chunks:
                pass
            went_on = stream.completion
    said = [line for line in place.log if "is gone; the group cannot go on" in line]
    return {
        "dtype": place.dtype,
        "killed": victim,
        "all_ended_s": ended.result(),
        "said": said[:1],
        "tokens_before": before,
        "plain_steps": went_on.speculation.plain_steps,
        "verify_steps": went_on.speculation.verify_steps,
        "equal": went_on.token_ids == wanted,
    }


def seconds_until_ended(pids: list[int]) -> float | None:
    """From now until none of the processes runs; None if one still does after WAIT_S."""
    began = time.perf_counter()
    while any(map(_runs, pids)):
        if time.perf_counter() - began > WAIT_S:
            return None
        time.sleep(0.005)
    return round(time.perf_counter() - began, 3)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def measured(options: argparse.Namespace) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """A row a place and mode, then one a killed rank."""
    rows, lost = [], []
    with placed(options) as places:
        for place in places:
            found = answers(place, options.max_tokens)
            for mode in MODES:
                rows.append(row(place, found, mode))
                print(json.dumps(rows[-1]), flush=True)
        for place in places:
            if place.ranks > 1:
                lost.append(lost_rank(place, 6 * options.max_tokens))
                print(json.dumps(lost[-1]), flush=True)
    return rows, lost


def main() -> int:
    """Writes the JSON; 1 when an answer is not the plain one or a lost rank does not end all."""
    parser = services_check.parser(__doc__)
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"], choices=VICTIMS)
    parser.add_argument("--draft-tp", type=int, default=2)
    options = parser.parse_args()
    rows, lost = measured(options)
    services_check.write(options, "gpu_draft_services", {"rows": rows, "lost": lost})
    good = all(found["equal"] == found["answers"] for found in rows)
    ended = all(found["equal"] and found["all_ended_s"] is not None for found in lost)
    return 0 if good and ended else 1


if __name__ == "__main__":
    sys.exit(main())
