"""`python -m benchmarks.data_plane`: what handing a step's rows to the draft costs, by data plane.

Two processes, no models: from rows in verify's memory, or on its GPU, to proposals for every
session, after the draft has the rows where its kernels read them. The planes take turns, so that
their ratios hold on a busy machine too. In-process is the same copy without any message.
"spinning": both sides look for messages of the local socket without sleeping.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import quantiles
from typing import Any, Protocol

import torch
from torch import Tensor

from benchmarks import provenance
from benchmarks.cpu_plan import new_file
from benchmarks.null_draft import MAX_ROWS, PROPOSALS
from benchmarks.service_processes import started
from benchmarks.text_table import text_table
from domino_cli.argument_types import positive
from domino_serve.v1 import draft_pb2 as pb
from domino_serve.v1 import verify_pb2
from serving.tensors import DTYPES
from serving.transport.choice import offered
from serving.transport.plane import NAMES
from serving.transport.spin import SPIN_S
from verify_service.draft_link import GrpcDraftLink

HIDDEN, DTYPE = 4096, "bfloat16"  # Qwen3-8B's rows
# Sessions and rows of a step: about six committed tokens each at C1, C8 and C32, and less.
STEPS = ((1, 1), (1, 6), (8, 48), (32, 192))
HELLO = pb.HandshakeRequest(
    target=verify_pb2.TargetFingerprint(hidden_size=HIDDEN, dtype=DTYPE),
    draft=verify_pb2.DraftFingerprint(content_hash="null"),
)
WAIT_S = 30.0
BASE, SPINNING = "inline, grpc tcp", "spinning"


class Link(Protocol):
    """As much of a draft link as is measured."""

    def send(self, request: pb.StepRequest, rows: Tensor | None) -> None: ...
    def receive(self, timeout_s: float) -> pb.StepResponse | None: ...


class InProcess:
    """The draft's copy alone."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._projected = torch.zeros((MAX_ROWS, HIDDEN), dtype=DTYPES[DTYPE], device=device)

    def send(self, request: pb.StepRequest, rows: Tensor | None) -> None:
        assert rows is not None
        self._projected[: len(rows)].copy_(rows, non_blocking=True)

    def receive(self, timeout_s: float) -> pb.StepResponse:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return pb.StepResponse()


@dataclass(frozen=True, slots=True)
class Cell:
    """Times of one plane at one size, in ms."""

    plane: str
    sessions: int
    rows: int
    times_ms: Sequence[float]

    @property
    def kib(self) -> float:
        return self.rows * HIDDEN * DTYPES[DTYPE].itemsize / 1024

    def at(self, percent: int) -> float:
        return quantiles(self.times_ms, n=100)[percent - 1]


def main(argv: Sequence[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    args = parser().parse_args(argv)
    origin = provenance.Origin.at_start(f"python -m benchmarks.data_plane {' '.join(argv)}".strip())
    cells = measure(args, torch.device(args.device), args.draft_device or args.device)
    print(table(cells))
    if args.json:
        where = {"verify": args.device, "draft": args.draft_device or args.device}
        result = {"benchmark": "data_plane", **origin.at_end(), "devices": where}
        result |= {"pause_ms": args.pause_ms, "busy_ms": args.busy_ms}
        result |= {"cpu": provenance.cpu().as_json(), "cells": [as_json(cell) for cell in cells]}
        args.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(prog="python -m benchmarks.data_plane", description=__doc__)
    found.add_argument("--device", default="cpu", help="verify's (%(default)s)")
    found.add_argument("--draft-device", metavar="DEVICE", help="the draft's, if another")
    found.add_argument(
        "--steps", type=positive, default=300, metavar="N", help="each (%(default)s)"
    )
    found.add_argument(
        "--pause-ms",
        type=float,
        default=0.0,
        help="verify's pass between two steps, for which it keeps its core busy (%(default)s)",
    )
    found.add_argument(
        "--busy-ms",
        type=float,
        default=0.0,
        help="the draft's model, on its GPU, about; included in the times (%(default)s)",
    )
    found.add_argument("--json", type=new_file, metavar="FILE", help="where the figures go")
    return found


def measure(args: argparse.Namespace, device: torch.device, draft_device: str) -> list[Cell]:
    """One way of messages after another, so that one process at a time has a context on a GPU; its
    planes in turn, step by step. One thread of a process spins, so those planes are alone."""
    cells = _by_size({"in-process": InProcess(torch.device(draft_device))}, device, args)
    options = {"device": draft_device, "busy_ms": args.busy_ms, "hidden": HIDDEN, "dtype": DTYPE}
    with tempfile.TemporaryDirectory() as folder:
        ways: dict[str, dict[str, object]] = {
            "grpc tcp": {},
            "grpc unix": {"listen": f"unix:{folder}/draft.sock"},
            "socket": {"step_socket": True},
            SPINNING: {"step_socket": True, "spin_s": SPIN_S},
        }
        planes = planes_of(device, torch.device(draft_device))
        for way, own in ways.items():
            for some in [[plane] for plane in planes] if way == SPINNING else [planes]:
                with started("benchmarks.null_draft", {**options, **own}) as peer:
                    cells += _of_links(peer.address, way, some, device, args)
    return sorted(cells, key=lambda cell: (cell.sessions, cell.rows))


def planes_of(device: torch.device, draft_device: torch.device) -> list[str]:
    """Those that can be had between the two; NCCL connects no GPU with itself."""
    if device.type == "cpu":
        return ["inline", "shm", "nccl"]
    one = (device.index or 0) == (draft_device.index or 0)
    return ["inline", "shm", "cuda-ipc", *([] if one else ["nccl"])]


def _of_links(
    address: str, way: str, planes: Sequence[str], device: torch.device, args: argparse.Namespace
) -> list[Cell]:
    with ExitStack() as stack:
        links: dict[str, Link] = {}
        for plane in planes:
            memories, spin_s = offered(plane, device), SPIN_S if way == SPINNING else 0.0
            hello = _greeting(memories)
            link = GrpcDraftLink(address, hello, WAIT_S, memories=memories, spin_s=spin_s)
            stack.callback(link.close)
            assert NAMES[link.plane] == plane, "it cannot be had"
            by_tcp = plane == "nccl" and device.type == "cpu"
            links[f"{plane}{' (tcp)' if by_tcp else ''}, {way}"] = link
        return _by_size(links, device, args)


def _by_size(links: dict[str, Link], device: torch.device, args: argparse.Namespace) -> list[Cell]:
    return [
        cell for sessions, rows in STEPS for cell in _measured(links, sessions, rows, device, args)
    ]


def _greeting(planes: Any) -> pb.HandshakeRequest:
    found = pb.HandshakeRequest()
    found.CopyFrom(HELLO)
    found.data_planes.extend(planes)
    return found


def _measured(
    links: dict[str, Link],
    sessions: int,
    rows: int,
    device: torch.device,
    args: argparse.Namespace,
) -> list[Cell]:
    sent = torch.randn(rows, HIDDEN, device=device).to(DTYPES[DTYPE])
    times: dict[str, list[float]] = {name: [] for name in links}
    warm = args.steps // 10
    for number in range(warm + args.steps):
        for name, link in links.items():
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            busy_until = time.perf_counter() + args.pause_ms / 1e3
            while (began := time.perf_counter()) < busy_until:
                pass
            link.send(_request(sessions, rows, number), sent)
            answer = link.receive(WAIT_S)
            took = (time.perf_counter() - began) * 1e3
            assert answer is not None
            assert name == "in-process" or len(answer.results) == sessions
            times[name].append(took)
    return [Cell(name, sessions, rows, took[warm:]) for name, took in times.items()]


def _request(sessions: int, rows: int, number: int) -> pb.StepRequest:
    each = rows // sessions
    steps = [
        pb.SessionStep(
            session=session, step=number, rows_start=number * each, num_rows=each, current=7,
            draft_tokens=len(PROPOSALS),
        )
        for session in range(sessions)
    ]  # fmt: skip
    return pb.StepRequest(steps=steps)


def table(cells: Sequence[Cell]) -> str:
    """Ratios are of medians, over BASE at the same size."""
    base = {(c.sessions, c.rows): c.at(50) for c in cells if c.plane == BASE}
    head = ("plane", "sessions", "rows", "KiB", "p50 ms", "p99 ms", "of inline, tcp")
    rows = [
        (
            cell.plane, str(cell.sessions), str(cell.rows), f"{cell.kib:g}", f"{cell.at(50):.3f}",
            f"{cell.at(99):.3f}", f"{cell.at(50) / base[cell.sessions, cell.rows]:.2f}",
        )
        for cell in cells
    ]  # fmt: skip
    return text_table(head, rows)


def as_json(cell: Cell) -> dict[str, Any]:
    return {
        "plane": cell.plane,
        "sessions": cell.sessions,
        "rows": cell.rows,
        "kib": cell.kib,
        "p50_ms": round(cell.at(50), 4),
        "p99_ms": round(cell.at(99), 4),
        "steps": len(cell.times_ms),
    }


if __name__ == "__main__":
    sys.exit(main())
