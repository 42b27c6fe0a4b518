"""The flags that say how one answer is to be made, and the RequestArgs they stand for."""

import argparse

from domino_cli.argument_types import positive
from domino_cli.errors import UsageError
from domino_cli.stack_arguments import MODES
from domino_client import BadRequest, RequestArgs
from domino_client.request import build_request
from domino_serve.v1.sampling_pb2 import Sampling
from serving.sampling import requested


def add_request_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--mode", choices=MODES, help="how tokens are drafted; ar does not draft")
    parser.add_argument(
        "--max-tokens", type=positive, metavar="N", help="most tokens to produce (256)"
    )
    group = parser.add_argument_group("answer")
    group.add_argument(
        "--temperature",
        type=float,
        metavar="T",
        help="0 (greedy) to 100 (default: 0, unless the router has --use-generation-config)",
    )
    group.add_argument("--top-k", type=int, metavar="K", help="draw from the K likeliest tokens")
    group.add_argument(
        "--top-p", type=float, metavar="P", help="draw from the likeliest tokens of mass P"
    )
    group.add_argument(
        "--min-p", type=float, metavar="P", help="drop tokens below P times the likeliest's odds"
    )
    group.add_argument("--seed", type=int, metavar="N", help="same seed, same answer")
    group.add_argument(
        "--stop", action="append", default=[], metavar="TEXT", help="end before TEXT; repeatable"
    )
    group.add_argument(
        "--min-tokens", type=int, metavar="N", help="do not end within N tokens, but at the cap"
    )
    group.add_argument(
        "--ignore-eos", action="store_true", default=None, help="go on past the end of sequence"
    )
    group.add_argument(
        "--draft-tokens",
        type=int,
        metavar="N",
        help="draft tokens per step, 0 is plain decoding (default: the service's width - 1)",
    )


def request_args(args: argparse.Namespace, prompt: str) -> tuple[str | None, RequestArgs]:
    """The text, None for a chat, and the rest; UsageError for what no router would take."""
    text = None if args.chat else prompt
    request = RequestArgs(
        chat=[{"role": "user", "content": prompt}] if args.chat else None,
        max_tokens=args.max_tokens,
        min_tokens=args.min_tokens,
        stop=args.stop,
        ignore_eos=args.ignore_eos,
        temperature=args.temperature,
        top_k=args.top_k,
        top_p=args.top_p,
        min_p=args.min_p,
        seed=args.seed,
        mode=args.mode,
        draft_tokens=args.draft_tokens,
    )
    try:
        requested(build_request(text, request), Sampling())
    except BadRequest as error:
        raise UsageError(str(error)) from None
    return text, request
