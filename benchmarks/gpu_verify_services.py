"""The services on GPUs in float32, over one rank and several, against the CPU: the same tokens.

`python -m benchmarks.gpu_verify_services --target T --draft D --json FILE` starts each place's
services, asks the demo's prompts plainly, drafted and sampled, then serves under torchrun, then
kills a rank while a request runs, which has to go on once the group serves again. `--cpu FILE`
keeps the CPU's answers: it is written where it does not exist.
"""

import json
import os
import queue
import signal
import sys
import time
from collections import deque
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks import services_check
from domino_cli.demo import PROMPTS
from domino_cli.errors import CommandError
from domino_cli.service_process import Event, ServiceProcess
from domino_cli.stack import Stack, StackConfig, flags
from domino_client import ChatTurn, Client
from domino_client.request import RequestArgs
from serving.errors import ServingError
from serving.unused_port import unused_port

Ids = list[tuple[int, ...]]
ARMS: dict[str, RequestArgs] = {
    "ar": {"mode": "ar"},
    "domino": {"mode": "domino"},
    "sampled ar": {"mode": "ar", "temperature": 0.8, "top_p": 0.9, "seed": 7},
    "sampled domino": {"mode": "domino", "temperature": 0.8, "top_p": 0.9, "seed": 7},
}


@dataclass(slots=True)
class Run:
    """Ids of every arm, tokens a second of the plain one, what verify logged of its start."""

    answers: dict[str, Ids] = field(default_factory=dict)
    tokens_s: dict[str, float] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)


def ask(client: Client, max_tokens: int, arms: Mapping[str, RequestArgs], run: Run) -> None:
    """Every arm's answers to the demo's prompts, one after the other."""
    for name, args in arms.items():
        _answer(client, PROMPTS[0], 8, args)
        began = time.perf_counter()
        run.answers[name] = [_answer(client, prompt, max_tokens, args) for prompt in PROMPTS]
        tokens = sum(map(len, run.answers[name]))
        run.tokens_s[name] = tokens / (time.perf_counter() - began)


def _answer(client: Client, prompt: str, max_tokens: int, args: RequestArgs) -> tuple[int, ...]:
    turns: list[ChatTurn] = [{"role": "user", "content": prompt}]
    given: RequestArgs = {**args, "chat": turns, "max_tokens": max_tokens}
    return client.generate(**given).token_ids


def served(config: StackConfig, max_tokens: int) -> Run:
    """A stack's answers; its ranks start as `domino-serve up` starts them."""
    run = Run()
    with Stack(config, say=run.log.append) as stack, Client(stack.router_address) as client:
        ask(client, max_tokens, ARMS, run)
    return run


def of_cpu(config: StackConfig, max_tokens: int, kept: Path | None) -> Run:
    """The CPU's answers, from `kept` where that file exists; it is written otherwise."""
    if kept and kept.exists():
        found = json.loads(kept.read_text())
        answers = {arm: [tuple(ids) for ids in rows] for arm, rows in found["answers"].items()}
        return Run(answers=answers, tokens_s=found["tokens_s"], log=found["log"])
    run = served(config, max_tokens)
    if kept:
        kept.write_text(json.dumps(asdict(run)))
    return run


def under_torchrun(config: StackConfig, max_tokens: int) -> Run:
    """Plain answers of a group that torchrun starts, a router in front."""
    run, events = Run(), queue.SimpleQueue[Event]()
    address = str(unused_port())
    runner = ["--nproc-per-node", str(config.tp), "--master-port", address, "-m", "verify_service"]
    verify = replace(config, draft=None).verify_flags()
    with ExitStack() as running:

        def start(name: str, module: str, arguments: list[str]) -> str:
            service = ServiceProcess(name, module, arguments, events=events, say=run.log.append)
            running.callback(service.stop, 60.0)
            event = events.get(timeout=300)
            if event.address is None:
                raise CommandError("\n".join([f"{name} ended", *run.log[-20:]]))
            return event.address

        found = start("verify", "torch.distributed.run", [*runner, *verify])
        models = flags({"target": config.target, "verify": found, "host": config.host, "port": 0})
        with Client(start("router", "router", models)) as client:
            ask(client, max_tokens, {"ar": ARMS["ar"]}, run)
    return run


def lost_rank(config: StackConfig, rank: str, max_tokens: int) -> dict[str, Any]:
    """A request whose rank is killed: seconds until the group has ended and until it serves again,
    what was said, and how the request and one like it after that went."""
    lines: deque[str] = deque()
    args: RequestArgs = {"max_tokens": max_tokens, "ignore_eos": True, "mode": "ar"}
    with Stack(config, say=lines.append) as stack, Client(stack.router_address) as client:
        with client.stream("Once upon a time", **args) as stream, ThreadPoolExecutor(1) as other:
            chunks = iter(stream)
            ids = list(next(chunks).token_ids)
            os.kill(stack.pids()[rank], signal.SIGKILL)
            attended = other.submit(_attended, stack, lines)
            try:
                for chunk in chunks:
                    ids += chunk.token_ids
                told = "went on"
            except ServingError as error:
                told = f"{type(error).__name__}: {error}"
            ended, ready = attended.result()
        whole = client.generate("Once upon a time", **args).token_ids
    said = [line for line in lines if "is gone; the group cannot go on" in line]
    found = {"killed": rank, "group_ended_s": ended, "ready_again_s": ready, "said": said[:1]}
    return found | {"request": told, "equal": ids == list(whole), "tokens": len(ids)}


def _attended(stack: Stack, lines: deque[str]) -> tuple[float, float]:
    """Seconds until a group has ended as a whole, and until it is ready again."""
    began = time.perf_counter()
    stack.attend()
    ended = time.perf_counter() - began
    while not any("is ready again" in line for line in lines):
        stack.attend()
    return ended, time.perf_counter() - began


def compare(runs: Mapping[str, Run]) -> list[dict[str, Any]]:
    """A row a place and arm: how many answers are the CPU's."""
    rows = []
    for place, run in runs.items():
        for arm, ids in run.answers.items():
            wanted = runs["cpu"].answers[arm.replace("domino", "ar")]
            same = sum(a == b for a, b in zip(ids, wanted, strict=True))
            row = {"place": place, "arm": arm, "equal": same, "answers": len(ids)}
            rows.append(row | {"tokens_s": round(run.tokens_s[arm], 1)})
            print(rows[-1], flush=True)
    return rows


def main() -> int:
    """Writes the JSON; 1 when an answer is not the CPU's or a lost rank is not told."""
    parser = services_check.parser(__doc__)
    parser.add_argument("--tp", type=int, default=2)
    parser.add_argument("--cpu", type=Path, help="where the CPU's answers are kept")
    options = parser.parse_args()
    alone = StackConfig(target=options.target, draft=options.draft, dtype="float32")
    on_gpu = replace(alone, device=options.device)
    group = replace(on_gpu, tp=options.tp)
    runs = {
        "cpu": of_cpu(replace(alone, device="cpu"), options.max_tokens, options.cpu),
        f"{options.device}, 1 rank": served(on_gpu, options.max_tokens),
        f"{options.device}, {options.tp} ranks": served(group, options.max_tokens),
        f"{options.device}, torchrun": under_torchrun(group, options.max_tokens),
    }
    rows = compare(runs)
    lost = [
        lost_rank(replace(group, draft=None), rank, options.max_tokens)
        for rank in ("rank1", "verify")
    ]
    for row in lost:
        print(row, flush=True)
    starts = {place: [line for line in run.log if "verify" in line]
              for place, run in runs.items()}  # fmt: skip
    services_check.write(
        options, "gpu_verify_services", {"rows": rows, "lost": lost, "starts": starts}
    )
    good = all(row["equal"] == row["answers"] for row in rows)
    told = all(row["said"] and row["equal"] for row in lost)
    return 0 if good and told else 1


if __name__ == "__main__":
    sys.exit(main())
