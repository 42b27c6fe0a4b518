"""`python -m training.embedded_answers`: the text a draft learns, made by its target on a GPU.

First users' turns that the target goes on with (training.own_prompts), then its greedy answers to
these and to the given prompts. Started by torchrun, every process makes its share, one folder
each. Next: training.embedded.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from router.tokenizer import Tokenizer
from serving.device import open_device
from serving.tensors import DTYPES
from training.dataset import write_dataset
from training.generate import Limits
from training.own_prompts import beginnings, own_prompts
from training.prompt_sets import without_benchmarks
from training.ranks import place
from training.regenerate import LEAST_ANSWER, document, regenerate
from training.target import BatchTarget

BEGAN = time.monotonic()
TURN = Limits(rows=2048, prompt=128, new=192, temperature=0.8)  # of users' turns


def say(text: str) -> None:
    print(f"[{time.monotonic() - BEGAN:6.1f} s] {text}", flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    args = parser().parse_args(argv)
    ranks, device = place(), open_device(args.device)
    target = BatchTarget.load(args.target, taps=(), dtype=DTYPES[args.dtype], device=device)
    tokenizer = Tokenizer.load(args.target)
    texts, benchmarks = (read_texts(file) for file in (args.prompts, args.benchmarks))
    begun = list(beginnings(texts, args.own_prompts // ranks.count, seed=1 + ranks.rank))
    own = list(without_benchmarks(own_prompts(target, tokenizer, begun, TURN, say), benchmarks))
    say(f"{len(own)} prompts of {len(begun)} beginnings")
    share = texts[ranks.rank :: ranks.count] + own
    prompts = [encode(tokenizer, text) for text in share]
    limits = Limits(rows=args.rows, prompt=args.prompt_tokens, new=args.new_tokens)
    answers = regenerate(target, prompts, limits, seconds=args.seconds, report=say)
    made = [document(prompts[a.prompt], a.tokens) for a in answers if len(a.tokens) >= LEAST_ANSWER]
    about = {"source": "the target's own greedy answers", "own_prompts": len(own)}
    write_dataset(args.out / str(ranks.rank), made, about)
    say(f"{len(made)} documents of {len(prompts)} prompts, {sum(len(d.ids) for d in made)} tokens")
    return 0


def parser() -> argparse.ArgumentParser:
    name = "python -m training.embedded_answers"
    found = argparse.ArgumentParser(prog=name, description=__doc__)
    found.add_argument("--target", type=Path, required=True, help="the target's folder")
    found.add_argument("--prompts", type=Path, required=True, help='JSONL of {"text"}')
    found.add_argument("--benchmarks", type=Path, required=True, help="the same, kept out")
    found.add_argument("--out", type=Path, required=True, help="a dataset for each process")
    found.add_argument("--own-prompts", type=int, default=60_000, metavar="N", help="begun")
    found.add_argument("--seconds", type=float, default=120, metavar="S", help="of answering")
    found.add_argument("--rows", type=int, default=2048, metavar="N", help="answers at a time")
    found.add_argument("--prompt-tokens", type=int, default=256, metavar="N")
    found.add_argument("--new-tokens", type=int, default=384, metavar="N")
    found.add_argument("--device", default="cuda")
    found.add_argument("--dtype", choices=DTYPES, default="bfloat16")
    return found


def read_texts(file: Path) -> list[str]:
    """The texts of a JSONL file."""
    return [json.loads(line)["text"] for line in file.read_text().split("\n") if line]


def encode(tokenizer: Tokenizer, text: str) -> list[int]:
    """One user's turn in the target's chat template."""
    return tokenizer.encode_chat([{"role": "user", "content": text}])


if __name__ == "__main__":
    sys.exit(main())
