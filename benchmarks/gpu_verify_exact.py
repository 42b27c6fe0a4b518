"""Speculative against plain output in bfloat16 on one GPU, in the default mode and --deterministic.

`--write-prompts FILE` makes the prompts on a machine that has the workloads; the run itself needs
`--target`, `--draft` (for its projection) and that file. Proposals are the plain answer, wrong from
a random place on, so that every length of acceptance occurs; batches mix differently in each run.
A divergence is a near-tie when the two tokens' float32 logits are at most 4 times the largest
difference between bfloat16 and float32 logits apart.
"""

import argparse
import datetime
import json
import queue
import random
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor

import verify_service.load
from benchmarks.gpu_verify_determinism_cost import cost_c8
from benchmarks.gpu_verify_tree import add_argument, imported_tree
from domino_cli.in_process import InProcess, collect
from domino_serve.v1 import draft_pb2
from domino_serve.v1 import speculation_pb2 as spec
from serving.target_config import open_target
from serving.transport.plane import IN_PROCESS, Plane
from verify_service.config import VerifyConfig
from verify_service.gpu_load import load_gpu_executor
from verify_service.gpu_rows import ragged_rows
from verify_service.scheduler import Work
from verify_service.sequence import DraftPlan, Event, Request, Sequence

WORKLOADS = ("gsm8k", "humaneval", "mt-bench", "math500")
EACH, LONGEST, NEW, WIDTH, PAGE = 64, 1500, 256, 16, 256
Answers = list[list[int]]


@dataclass(slots=True, eq=False, weakref_slot=True)
class EchoLink:
    """A draft that knows what plain decoding said; wrong from a random place of each block on."""

    known: Answers
    vocab: int
    rng: random.Random
    max_rows: int = 4096
    context_id: int = 0
    late_answers: int = 0
    plane: Plane = IN_PROCESS
    projection: int = 0
    alive: bool = True
    _ticket: dict[int, int] = field(default_factory=dict)
    _request: draft_pb2.StepRequest = field(default_factory=draft_pb2.StepRequest)

    def send(self, request: draft_pb2.StepRequest, rows: Tensor | None) -> None:
        self._request = request

    def receive(self, timeout_s: float) -> draft_pb2.StepResponse:
        answer = draft_pb2.StepResponse(sequence_number=self._request.sequence_number)
        self._ticket |= {o.session: int(o.ticket) for o in self._request.opens}
        for step in self._request.steps:
            result = answer.results.add(session=step.session, step=step.step)
            result.proposals.draft_kv_len = end = step.rows_start + step.num_rows
            if step.HasField("current"):
                known = self.known[self._ticket[step.session]]
                block = known[end + 1 : end + 1 + step.draft_tokens]
                wrong = self.rng.randint(0, len(block))
                block[wrong:] = [self.rng.randrange(self.vocab) for _ in block[wrong:]]
                result.proposals.ids.extend(block)
        return answer

    def close(self) -> None:
        self.alive = False


def write_prompts(target: Path, file: Path) -> None:
    """EACH chat prompts of each workload as token ids."""
    from benchmarks.workloads import load
    from router.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(target)
    prompts = [
        tokenizer.encode_chat([{"role": "user", "content": text}])
        for name in WORKLOADS
        for text in load(name, EACH)
    ]
    file.write_text(json.dumps([ids for ids in prompts if len(ids) <= LONGEST]))


def answers(engine: InProcess, prompts: Answers, seed: int, known: Answers | None) -> Answers:
    """Every prompt's NEW tokens, 32 at once, in an order by seed; drafted where known is given."""
    order = list(range(len(prompts)))
    rng = random.Random(seed)
    rng.shuffle(order)
    link = EchoLink(known, 49152, rng) if known else None
    running: dict[int, queue.SimpleQueue[Event]] = {}
    found: dict[int, list[int]] = {}
    for i in order:
        plan = None
        if link:
            tokens = rng.choice((3, 7, WIDTH - 1, WIDTH - 1))
            plan = DraftPlan(link=link, ticket=str(i), mode=spec.MODE_DOMINO, draft_tokens=tokens)
        running[i] = engine.submit(prompts[i], NEW, plan=plan)
    for i in order:
        found[i] = collect(running[i])[0]
    if link and not link.alive:
        raise RuntimeError(
            "the engine gave the draft up: the rest was decoded plainly, which proves nothing"
        )
    return [found[i] for i in range(len(prompts))]


def equal(found: Answers, wanted: Answers) -> float:
    """Share of equal answers."""
    return sum(a == b for a, b in zip(found, wanted, strict=True)) / len(wanted)


def run_mode(config: VerifyConfig, prompts: Answers) -> dict[str, Any]:
    """Plain twice, in two orders, and speculative."""
    loaded = verify_service.load.load(config)
    with InProcess(loaded) as engine:
        plain = answers(engine, prompts, 1, None)
        known = [[*prompt, *answer] for prompt, answer in zip(prompts, plain, strict=True)]
        again, drafted = answers(engine, prompts, 2, None), answers(engine, prompts, 3, known)
    return {
        "deterministic": config.deterministic,
        "plain_again": equal(again, plain),
        "speculative": equal(drafted, plain),
        "answers": (plain, drafted),
    }


@torch.inference_mode()
def last_logits(config: VerifyConfig, dtype: torch.dtype, contexts: Answers) -> Tensor:
    """Logits [n, vocab] float32 after each context, by single launches in `dtype`."""
    checkpoint, target_config = open_target(config.target)
    config = replace(config, draft=None, max_sequences=1, kv_tokens=16 * PAGE)
    executor = load_gpu_executor(
        config, target_config, checkpoint, None, dtype=dtype, device=torch.device("cuda:0")
    )
    request = Request(request_id="", prompt_ids=[], max_tokens=1, stop_ids=frozenset(), emit=print)
    gpu, rows = executor._gpu, []
    for ids in contexts:
        pages = list(range(-(-len(ids) // PAGE)))
        work = [Work(sequence=Sequence(request, pages=pages), ids=ids, choices=1)]
        normed = gpu.forward(ragged_rows(work, PAGE, gpu.plan, gpu.device), executor._kv, None)
        rows.append(gpu.logits(normed[-1:]).float())
    return torch.cat(rows)


def divergences(config: VerifyConfig, prompts: Answers, mode: dict[str, Any]) -> dict[str, Any]:
    """How far apart the tokens are where answers part, against bfloat16's largest error."""
    contexts, pairs = [], []
    for prompt, plain, drafted in zip(prompts, *mode["answers"], strict=True):
        parted = [j for j, (a, b) in enumerate(zip(plain, drafted, strict=True)) if a != b]
        if parted:
            contexts.append([*prompt, *plain[: parted[0]]])
            pairs.append((plain[parted[0]], drafted[parted[0]]))
    sample = prompts[:: len(prompts) // 32]
    exact = last_logits(config, torch.float32, [*sample, *contexts])
    rounded = last_logits(config, torch.bfloat16, [*sample, *contexts])
    error = float((exact - rounded).abs().max())
    own = exact[len(sample) :]
    gaps = [abs(float(row[a] - row[b])) for row, (a, b) in zip(own, pairs, strict=True)]
    near = sum(gap <= 4 * error for gap in gaps)
    return {"diverged": len(gaps), "near_ties": near, "largest_error": error, "gaps": gaps}


def figures(result: dict[str, Any]) -> list[dict[str, Any]]:
    """The issue's figures."""
    fixed = result["modes"][0]
    match = min(fixed["speculative"], fixed["plain_again"])
    rate = 1 - result["modes"][1]["speculative"]
    rows = [
        ("gpu_deterministic_match_rate", match, 1.0, False),
        ("gpu_bf16_divergence_rate", rate, 0.02, True),
        ("gpu_deterministic_cost_c8", result["cost"]["worst"], 1.25, True),
    ]
    return [
        {"id": name, "value": round(value, 4), "unit": "ratio", "goal": goal}
        | {"met": value <= goal if lower else value >= goal, "lower_is_better": lower}
        | result["about"]
        for name, value, goal, lower in rows
    ]


def main() -> None:
    """Writes prompts, or runs both modes and writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--draft", type=Path)
    parser.add_argument("--prompts", type=Path)
    parser.add_argument("--write-prompts", type=Path)
    parser.add_argument("--json", type=Path)
    add_argument(parser)
    options = parser.parse_args()
    if options.write_prompts:
        write_prompts(options.target, options.write_prompts)
        return
    prompts: Answers = json.loads(options.prompts.read_text())
    config = VerifyConfig(
        target=options.target,
        draft=options.draft,
        device="cuda:0",
        dtype="bfloat16",
        max_waiting=len(prompts),
        kv_tokens=65536,
        prefill_tokens=2048,
    )
    about = {
        "hardware": torch.cuda.get_device_name(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "versions": {"torch": torch.__version__, "triton": triton.__version__},
        "command": "python -m benchmarks.gpu_verify_exact --target T --draft D --prompts P",
    }
    modes = [run_mode(replace(config, deterministic=fixed), prompts) for fixed in (True, False)]
    result: dict[str, Any] = {
        "about": about,
        "tree": imported_tree(options.tree),
        "prompts": len(prompts),
        "new": NEW,
    }
    result["divergences"] = divergences(config, prompts, modes[1])
    result["modes"] = [{k: v for k, v in mode.items() if k != "answers"} for mode in modes]
    print(json.dumps(result["modes"]), json.dumps(result["divergences"]), flush=True)
    result["cost"] = cost_c8()
    result["figures"] = figures(result)
    options.json.write_text(json.dumps(result, indent=1) + "\n")
    for figure in result["figures"]:
        print(figure["id"], figure["value"], "goal", figure["goal"])


if __name__ == "__main__":
    main()
