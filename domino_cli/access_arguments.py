"""The flags by which a command gets into a protected service, and what a Client takes for them."""

import argparse
import os
from pathlib import Path
from typing import Final

from domino_cli.errors import UsageError
from domino_cli.stack import flag
from domino_client import Tls
from serving.address import is_address
from serving.options import OptionError

TOKEN_VARIABLE: Final = "DOMINO_SERVE_TOKEN"
_FLAGS: Final = ("tls_ca", "tls_cert", "tls_key", "tls_server_name", "token_file")


def address(text: str) -> str:
    """argparse type: where a running service listens."""
    if not is_address(text):
        raise argparse.ArgumentTypeError(f"{text!r} is neither HOST:PORT nor unix:/PATH")
    return text


def add_tls_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("access to a running service")
    group.add_argument("--tls-ca", type=Path, metavar="FILE", help="CA of its certificate; TLS")
    group.add_argument("--tls-cert", type=Path, metavar="FILE", help="own certificate, if asked")
    group.add_argument("--tls-key", type=Path, metavar="FILE", help="its key")
    group.add_argument(
        "--tls-server-name",
        metavar="NAME",
        help="name in its certificate, if not the host of its address",
    )


def add_token_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help=f"file with the bearer token (default: the environment's {TOKEN_VARIABLE})",
    )


def refuse_access_flags(args: argparse.Namespace) -> None:
    """For a command that starts its own services, which are open on this machine alone."""
    for name in _FLAGS:
        if getattr(args, name) is not None:
            raise UsageError(f"{flag(name)} is for a running router: give --address")


def tls_of(args: argparse.Namespace) -> Tls | None:
    """None without --tls-ca; raises UsageError naming the file that cannot be used."""
    if args.tls_ca is None:
        for name in ("tls_cert", "tls_key", "tls_server_name"):
            if getattr(args, name) is not None:
                raise UsageError(f"{flag(name)} needs --tls-ca")
        return None
    try:
        return Tls(
            ca=args.tls_ca,
            cert=args.tls_cert,
            key=args.tls_key,
            server_name=args.tls_server_name,
        )
    except OptionError as error:
        raise UsageError(f"{flag(error.field)} {error.value}: {error.remedy}") from error


def token_of(args: argparse.Namespace) -> str | None:
    """The file's token, else the environment's; raises UsageError."""
    if args.token_file is None:
        return os.environ.get(TOKEN_VARIABLE)
    try:
        lines: list[str] = args.token_file.read_text(encoding="ascii").split()
    except (OSError, UnicodeError) as error:
        raise UsageError(f"--token-file {args.token_file}: {error}") from error
    if len(lines) != 1:
        raise UsageError(f"--token-file {args.token_file}: must hold one token")
    return lines[0]
