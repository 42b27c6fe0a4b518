"""`domino-serve data`: text for a draft - conversations tokenized, or answered by the target."""

import argparse
import json
from pathlib import Path

from domino_cli.errors import UsageError
from domino_cli.models import resolve_model
from domino_cli.progress import clear, overwrite, say
from domino_cli.stack_arguments import positive
from serving.errors import StartError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="prepare | regenerate")
    prepare = actions.add_parser("prepare", help="JSONL conversations -> a dataset to train on")
    prepare.add_argument("source", type=Path, metavar="IN.jsonl")
    prepare.add_argument("folder", type=Path, metavar="OUT", help="folder of the dataset")
    prepare.add_argument("--max-tokens", type=positive, default=3072, metavar="N")
    prepare.add_argument("--min-supervised", type=positive, default=2, metavar="N")
    prepare.add_argument(
        "--last-turn-only", action="store_true", help="learn the last answer alone"
    )
    prepare.add_argument("--skip-malformed", action="store_true", help="count bad lines, go on")
    again = actions.add_parser(
        "regenerate", help="JSONL of prompts or conversations -> the target's own greedy answers"
    )
    again.add_argument("source", type=Path, metavar="IN.jsonl")
    again.add_argument("folder", type=Path, metavar="OUT", help="folder of the dataset")
    again.add_argument("--rows", type=positive, default=64, metavar="N", help="prompts at a time")
    again.add_argument("--prompt-tokens", type=positive, default=1024, metavar="N")
    again.add_argument("--new-tokens", type=positive, default=1024, metavar="N")
    again.add_argument("--device", default="cpu")
    again.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    for sub in (prepare, again):
        sub.add_argument("--target", required=True, help="folder or name of the target")


def run(args: argparse.Namespace) -> int:
    """Raises UsageError naming the line, field or setting that cannot be used."""
    try:
        return execute(args)
    except StartError as error:
        raise UsageError(str(error)) from error


def execute(args: argparse.Namespace) -> int:
    return prepare(args) if args.action == "prepare" else regenerate(args)


def prepare(args: argparse.Namespace) -> int:
    from router.tokenizer import Tokenizer
    from serving.target_config import open_target
    from training.dataset import write_dataset
    from training.prepare import PrepareOptions
    from training.prepare import prepare as tokenize

    folder = resolve_model(args.target)
    target = open_target(folder, weights=False)[1]
    options = PrepareOptions(
        max_tokens=args.max_tokens,
        vocab_size=target.vocab_size,
        end_ids=target.eos_token_ids,
        min_supervised=args.min_supervised,
        last_turn_only=args.last_turn_only,
        skip_malformed=args.skip_malformed,
    )
    found = tokenize(args.source, Tokenizer.load(folder), options)
    about = {"source": str(args.source), "target": folder.name, "counts": dict(found.counts)}
    write_dataset(args.folder, found.documents, about)
    print(json.dumps(about["counts"]))
    return 0


def regenerate(args: argparse.Namespace) -> int:
    from router.tokenizer import Tokenizer
    from serving.device import open_device
    from serving.target_config import open_target
    from serving.tensors import DTYPES
    from training.dataset import write_dataset
    from training.generate import Limits
    from training.prepare import read_prompts
    from training.regenerate import LEAST_ANSWER, document
    from training.regenerate import regenerate as answer
    from training.target import BatchTarget

    folder = resolve_model(args.target)
    vocab = open_target(folder, weights=False)[1].vocab_size
    prompts = read_prompts(args.source, Tokenizer.load(folder), vocab)
    device, dtype = open_device(args.device), DTYPES[args.dtype]
    target = BatchTarget.load(folder, taps=(), dtype=dtype, device=device)
    limits = Limits(rows=args.rows, prompt=args.prompt_tokens, new=args.new_tokens, straggling=0.0)
    answers = list(answer(target, prompts, limits, report=overwrite))
    clear()
    kept = [a for a in answers if len(a.tokens) >= LEAST_ANSWER]
    counts = {
        "kept": len(kept),
        "dropped: answer too short": len(answers) - len(kept),
        "dropped: prompt too long": len(prompts) - len(answers),
        "cut at new-tokens": sum(not a.ended for a in kept),
    }
    about = {"source": str(args.source), "target": folder.name, "counts": counts}
    write_dataset(args.folder, [document(prompts[a.prompt], a.tokens) for a in kept], about)
    say(f"{args.folder}: {len(kept)} answers")
    print(json.dumps(counts))
    return 0
