"""`domino-serve data`: text for a draft - conversations tokenized, or answered by the target."""

import argparse
import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from domino_cli.answer_bar import AnswerBar
from domino_cli.argument_types import positive
from domino_cli.errors import UsageError, told_in_a_line
from domino_cli.models import resolve_model
from domino_cli.progress import say

SOURCE = "a line: messages or conversations (OpenAI, ShareGPT), text, or input_ids and loss_mask"

if TYPE_CHECKING:
    from training.answer_journal import AnswerJournal
    from training.engine_answers import Failed
    from training.regenerate import Answered


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="prepare | regenerate")
    prepare = actions.add_parser("prepare", help="JSONL conversations -> a dataset to train on")
    prepare.add_argument("source", type=Path, metavar="IN.jsonl", help=SOURCE)
    prepare.add_argument("folder", type=Path, metavar="OUT", help="folder of the dataset")
    prepare.add_argument(
        "--max-tokens",
        type=positive,
        default=3072,
        metavar="N",
        help="longer documents are cut (3072)",
    )
    prepare.add_argument(
        "--min-supervised",
        type=positive,
        default=2,
        metavar="N",
        help="documents with fewer tokens to learn are dropped (2)",
    )
    prepare.add_argument(
        "--last-turn-only", action="store_true", help="learn the last answer alone"
    )
    again = actions.add_parser(
        "regenerate",
        help="JSONL of prompts or conversations -> the target's own greedy answers; the same "
        "command again goes on where it was interrupted",
    )
    again.add_argument("source", type=Path, metavar="IN.jsonl", help=SOURCE)
    again.add_argument("folder", type=Path, metavar="OUT", help="folder of the dataset")
    for name, default, what in (
        ("--rows", 64, "prompts at a time"),
        ("--prompt-tokens", 1024, "longer prompts get no answer"),
        ("--new-tokens", 1024, "of an answer, at most"),
    ):
        again.add_argument(
            name, type=positive, default=default, metavar="N", help=f"{what} ({default})"
        )
    again.add_argument(
        "--keep-truncated",
        action="store_true",
        help="learn answers that reached --new-tokens too; else they stay in truncated.jsonl alone",
    )
    again.add_argument("--device", default="cpu", help="cpu or cuda (cpu)")
    again.add_argument(
        "--dtype", choices=("float32", "bfloat16"), default="float32", help="(float32)"
    )
    for sub, what in ((prepare, "count bad lines"), (again, "bad lines go to failed.jsonl")):
        sub.add_argument("--skip-malformed", action="store_true", help=f"{what}, go on")
        sub.add_argument("--target", required=True, help="folder or name of the target")


def run(args: argparse.Namespace) -> int:
    """Raises UsageError naming the line, field or setting that cannot be used."""
    with told_in_a_line():
        return execute(args)


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
    say(f"{args.folder}: {len(found.documents)} documents, {found.tokens} tokens")
    print(json.dumps(about["counts"]))
    return 0


def regenerate(args: argparse.Namespace) -> int:
    """Answers what the folder has no answer to yet, then writes the dataset anew."""
    from router.tokenizer import Tokenizer
    from serving.target_config import open_target
    from training.answer_journal import ANSWERS, AnswerJournal
    from training.claim import claimed
    from training.dataset import write_dataset
    from training.prepare import read_prompts
    from training.regenerate import LEAST_ANSWER, document

    folder = resolve_model(args.target)
    checkpoint, target = open_target(folder)
    prompts, faults = read_prompts(
        args.source,
        Tokenizer.load(folder),
        target.vocab_size,
        skip_malformed=args.skip_malformed,
    )
    about = {
        "source": hashlib.sha256(args.source.read_bytes()).hexdigest(),
        "target": checkpoint.content_hash(),
        "prompt_tokens": args.prompt_tokens,
        "new_tokens": args.new_tokens,
    }
    with claimed(args.folder, ANSWERS), AnswerJournal(args.folder, about) as journal:
        answer_rest(args, folder, prompts, faults, journal)
        found = journal.answers(truncated=args.keep_truncated)
        kept = [answer for answer in found if len(answer.tokens) >= LEAST_ANSWER]
        counts = {"kept": len(kept), **journal.counts()}
    if not kept:
        raise UsageError(f"no answer is left: {counts}; raise --new-tokens or --keep-truncated")
    whole = {"source": str(args.source), "target": folder.name, "counts": counts}
    write_dataset(args.folder, [document(prompts[a.prompt], a.tokens) for a in kept], whole)
    left_out = 0 if args.keep_truncated else counts["truncated"]
    more = f"; {left_out} reached --new-tokens: --keep-truncated learns them too"
    say(f"{args.folder}: {len(kept)} answers{more if left_out else ''}")
    print(json.dumps(counts))
    return 0


def answer_rest(
    args: argparse.Namespace,
    target: Path,
    prompts: list[list[int]],
    faults: dict[int, str],
    journal: "AnswerJournal",
) -> None:
    """Adds to the journal what it lacks; prompts that cannot be answered with the reason."""
    from training.engine_answers import Failed

    if journal.done:
        say(f"{args.folder}: {len(journal.done)} of {len(prompts)} prompts are done")
    for place in sorted(set(range(len(prompts))) - journal.done):
        if not 0 < len(prompts[place]) <= args.prompt_tokens:
            reason = f"{len(prompts[place])} tokens, 1 to {args.prompt_tokens} are allowed"
            journal.add(Failed(place, faults.get(place, reason)))
    wanted = sorted(set(range(len(prompts))) - journal.done)
    bar = AnswerBar(len(prompts), wanted, args.new_tokens)
    try:
        for found in answers(args, target, prompts, wanted, bar.tick):
            journal.add(found)
            bar.add(found)
    except KeyboardInterrupt:
        say(f"stopped: {len(journal.done)} of {len(prompts)} are done; the same command goes on")
        raise
    bar.clear()


def answers(
    args: argparse.Namespace,
    target: Path,
    prompts: list[list[int]],
    wanted: list[int],
    tick: Callable[[int], None],
) -> "Iterator[Answered | Failed]":
    """Of the verify engine on a CPU; on a GPU of rows that advance together."""
    if not wanted:
        return
    if not args.device.startswith("cuda"):
        from training.engine_answers import engine_answers

        options = {"rows": args.rows, "new": args.new_tokens}
        yield from engine_answers(
            target, prompts, wanted, **options, device=args.device, dtype=args.dtype, tick=tick
        )
        return
    from serving.device import open_device
    from serving.tensors import DTYPES
    from training.generate import Limits
    from training.regenerate import regenerate
    from training.target import BatchTarget

    device, dtype = open_device(args.device), DTYPES[args.dtype]
    limits = Limits(rows=args.rows, prompt=args.prompt_tokens, new=args.new_tokens, straggling=0.0)
    loaded = BatchTarget.load(target, taps=(), dtype=dtype, device=device)
    for found in regenerate(loaded, [prompts[i] for i in wanted], limits):
        yield dataclasses.replace(found, prompt=wanted[found.prompt])
