"""`python -m benchmarks.data_plane_exact`: greedy output, and the draft's work, by data plane.

Services on a device, as many at once as fit, first plain, then drafted for: every token must be the
plain one, and proposals and acceptance the same whatever the plane. Exit code 1 where they are not.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass

from benchmarks import provenance
from benchmarks.cpu_plan import new_file
from benchmarks.service_processes import Started, started
from benchmarks.text_table import text_table
from domino_cli.models import DEFAULT_DRAFT, DEFAULT_TARGET, resolve_model
from domino_serve.v1 import draft_pb2, draft_pb2_grpc, verify_pb2, verify_pb2_grpc
from domino_serve.v1 import speculation_pb2 as spec
from serving.channel import channel
from serving.transport.plane import NAMES

# Ids that every tokenizer has, in prompts of 7 to 119 of them: what they say does not matter.
PROMPTS = [[1, 93, 28, 98 + i, 14, 60, 100 + 7 * i] * (1 + 4 * (i % 5)) for i in range(12)]
AT_ONCE = 6
WAIT_S = 120.0


@dataclass(frozen=True, slots=True)
class Answer:
    """One request's."""

    ids: list[int]
    accepted: int
    proposed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Of one plane: `used` is what the services agreed on; early: the draft's steps that had begun
    before they were asked for, as two processes count them."""

    plane: str
    used: str
    identical: int
    of: int
    accepted: int
    proposed: int
    early: int


def main(argv: Sequence[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    args = parser().parse_args(argv)
    whole = provenance.Origin.at_start(f"python -m benchmarks.data_plane_exact {' '.join(argv)}")
    found = [measure(args, plane) for plane in args.planes.split(",")]
    print(text_table(tuple(Found.__dataclass_fields__), [_cells(one) for one in found]))
    same = {(one.accepted, one.proposed) for one in found}
    good = all(one.identical == one.of and one.used == one.plane for one in found)
    if args.json:
        result = {"benchmark": "data_plane_exact", **whole.at_end(), "device": args.device}
        result |= {"dtype": args.dtype, "planes": [asdict(one) for one in found]}
        args.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0 if good and len(same) == 1 else 1


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(prog="python -m benchmarks.data_plane_exact")
    found.add_argument("--target", default=DEFAULT_TARGET)
    found.add_argument("--draft", default=DEFAULT_DRAFT)
    found.add_argument("--device", default="cpu")
    found.add_argument("--draft-device")
    found.add_argument("--dtype", default="float32")
    found.add_argument("--planes", default="inline,shm,in-process")
    found.add_argument("--max-tokens", type=int, default=96)
    found.add_argument("--json", type=new_file, metavar="FILE")
    return found


def measure(args: argparse.Namespace, plane: str) -> Found:
    """Starts the services of a plane and asks them everything twice."""
    common = {
        "target": resolve_model(args.target), "draft": resolve_model(args.draft),
        "dtype": args.dtype, "threads": 1, "page_size": 64,
    }  # fmt: skip
    own = {"max_sequences": AT_ONCE, "width_policy": "fixed", "device": args.device}
    with ExitStack() as stack:
        if plane == "in-process":
            verify = stack.enter_context(started("domino_cli.one_process", {**common, **own}))
            draft = verify
        else:
            at = {"device": args.draft_device or args.device}
            draft = stack.enter_context(started("draft_service", {**common, **at}))
            own |= {"data_plane": plane}
            verify = stack.enter_context(started("verify_service", {**common, **own}))
        return _asked(plane, verify, draft, args.max_tokens)


def _asked(plane: str, verify: Started, draft: Started, max_tokens: int) -> Found:
    with channel(verify.address) as calls, channel(draft.address) as seats:
        stub = verify_pb2_grpc.VerifyServiceStub(calls)
        places = draft_pb2_grpc.DraftServiceStub(seats)
        block = stub.GetTarget(verify_pb2.GetTargetRequest()).default_draft_tokens

        def ask(case: int) -> Answer:
            seat = _seat(places, draft.address, block) if case >= len(PROMPTS) else None
            return _answer(stub, case, max_tokens, seat)

        with ThreadPoolExecutor(AT_ONCE) as pool:
            plain = list(pool.map(ask, range(len(PROMPTS))))
            drafted = list(pool.map(ask, range(len(PROMPTS), 2 * len(PROMPTS))))
        early = places.GetLoads(draft_pb2.DraftServiceGetLoadsRequest()).early_steps
        (link,) = stub.GetLoads(verify_pb2.GetLoadsRequest()).draft_links
    return Found(
        plane=plane,
        used=NAMES[link.data_plane],
        identical=sum(a.ids == b.ids for a, b in zip(plain, drafted, strict=True)),
        of=len(PROMPTS),
        accepted=sum(answer.accepted for answer in drafted),
        proposed=sum(answer.proposed for answer in drafted),
        early=early,
    )


def _seat(
    places: draft_pb2_grpc.DraftServiceStub, address: str, draft_tokens: int
) -> verify_pb2.DraftSeat:
    mode = spec.MODE_DOMINO
    wish = draft_pb2.ReserveSeatRequest(mode=mode, max_positions=400)
    ticket = places.ReserveSeat(wish, timeout=WAIT_S).ticket
    return verify_pb2.DraftSeat(
        address=address, ticket=ticket, mode=mode, draft_tokens=draft_tokens
    )


def _answer(
    stub: verify_pb2_grpc.VerifyServiceStub,
    case: int,
    max_tokens: int,
    seat: verify_pb2.DraftSeat | None,
) -> Answer:
    request = verify_pb2.VerifyServiceGenerateRequest(
        request_id=f"case-{case}",
        prompt_ids=PROMPTS[case % len(PROMPTS)],
        max_tokens=max_tokens,
        draft=seat,
    )
    ids: list[int] = []
    stats = spec.SpeculationStats()
    for event in stub.Generate(request, timeout=WAIT_S):
        if event.HasField("complete"):
            stats = event.complete.speculation
        ids.extend(event.chunk.token_ids)
    return Answer(ids, stats.accepted_tokens, stats.proposed_tokens)


def _cells(found: Found) -> list[str]:
    return [str(value) for value in asdict(found).values()]


if __name__ == "__main__":
    sys.exit(main())
