"""`domino-serve token NAME`: a new bearer token, and the entry of the router's --callers file."""

import argparse
import hashlib
import re
import secrets
from datetime import UTC, datetime, timedelta

from domino_cli.argument_types import positive
from domino_cli.errors import UsageError
from domino_cli.progress import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="who will use it: letters, digits, - and _")
    parser.add_argument("--days", type=positive, metavar="N", help="days until it expires")
    parser.add_argument("--max-requests", type=positive, metavar="N", help="running at once")


def run(args: argparse.Namespace) -> int:
    if not re.fullmatch(r"[A-Za-z0-9_-]+", args.name):
        raise UsageError(f"NAME: {args.name!r} must be letters, digits, - and _")
    token = secrets.token_urlsafe(32)
    lines = entry(args.name, token, args.days, args.max_requests)
    print(token)
    say("the token is on stdout and nowhere else; add this to the router's --callers file:\n")
    say("\n".join(lines))
    return 0


def entry(name: str, token: str, days: int | None, max_requests: int | None) -> list[str]:
    """Lines of TOML; raises UsageError for days that no calendar has."""
    lines = [f"[{name}]", f'token_sha256 = "{hashlib.sha256(token.encode()).hexdigest()}"']
    if days:
        try:
            ends = datetime.now(UTC) + timedelta(days=days)
        except OverflowError:
            raise UsageError(f"--days {days}: ends behind the year 9999") from None
        lines.append(f"expires = {ends:%Y-%m-%dT%H:%M:%SZ}")
    if max_requests:
        lines.append(f"max_requests = {max_requests}")
    return lines
