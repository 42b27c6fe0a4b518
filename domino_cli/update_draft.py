"""`domino-serve update-draft`: a running draft service takes another checkpoint."""

import argparse
import json
from pathlib import Path

import grpc

from domino_cli.access_arguments import add_tls_arguments, address, tls_of
from domino_cli.argument_types import positive
from domino_cli.errors import CommandError
from serving.errors import PeerUnavailable, from_rpc_error


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--draft-address",
        type=address,
        required=True,
        metavar="HOST:PORT",
        help="the running draft service",
    )
    parser.add_argument(
        "--draft",
        type=Path,
        required=True,
        metavar="FOLDER",
        help="checkpoint of the loaded draft's shape, on the draft service's machine",
    )
    parser.add_argument(
        "--timeout", type=positive, default=600, metavar="S", help="seconds to wait (%(default)s)"
    )
    add_tls_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Prints what is served now; raises ServingError naming what does not fit, CommandError where
    no draft service answers."""
    from domino_serve.v1 import draft_pb2, draft_pb2_grpc
    from serving.channel import channel

    folder = args.draft.resolve() if args.draft.is_dir() else args.draft
    request = draft_pb2.UpdateDraftWeightsRequest(folder=str(folder))
    with channel(args.draft_address, tls_of(args)) as calls:
        stub = draft_pb2_grpc.DraftServiceStub(calls)
        try:
            answer = stub.UpdateDraftWeights(request, timeout=args.timeout)
        except grpc.RpcError as error:
            told = from_rpc_error(error, f"draft service {args.draft_address}")
            if isinstance(told, PeerUnavailable):
                raise CommandError(f"{told}; give a running one's --draft-address") from None
            raise told from None
    print(
        json.dumps(
            {
                "draft": answer.draft.name,
                "content_hash": answer.draft.content_hash,
                "context_id": answer.context_id,
                "changed": answer.changed,
            }
        )
    )
    return 0
