"""What two processes add to a step at Qwen3-8B's shapes: the three services against one process.

Weights are RANDOM (`python -m benchmarks.random_pair FOLDER`), acceptance is SYNTHETIC, at the
lengths the Domino authors published. Steps are read from the verify service's timeline: those in
which every request drafts (with ping-pong half of them; ms is then half a cycle's). The same by the
local socket, by gRPC's stream, and with rows by NCCL.
"""

import argparse
import json
import random
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import provenance
from benchmarks.gpu_cycle import LENGTHS, NEW, PROMPT, VLLM_MS, WIDTHS
from benchmarks.gpu_verify_tree import add_argument, imported_tree
from benchmarks.pair_steps import LAPS, Load, times
from benchmarks.text_table import text_table
from domino_cli.progress import say
from domino_cli.stack import Stack, StackConfig
from domino_client import Client
from domino_serve.v1 import speculation_pb2 as spec
from serving.target_config import open_target
from verify_service.timeline import Step

LABEL = "RANDOM WEIGHTS, SYNTHETIC ACCEPTANCE, Qwen3-8B shapes, bfloat16, prompt 512 + 256"
HOP_MS = {1: 0.35, 32: 0.5}
OVER_VLLM = {1: 1.08, 8: 1.12, 32: 1.03}
ROUNDS = 3
# The draft's options. In-process: verify and draft are one. Rows by NCCL, which no early step
# takes. By gRPC although services share a host; by the local socket as a user has it; with steps
# that begin when they are asked for, and so that both sides sleep until they hear of each other.
WAYS: dict[str, list[str]] = {
    "in-process": [],
    "nccl": [],
    "grpc": ["--no-step-socket"],
    "socket": [],
    "asked": ["--no-early-steps"],
    "sleeping": ["--no-early-steps", "--spin-s", "0"],
}
DOMINO = LENGTHS[spec.MODE_DOMINO]


@dataclass(frozen=True, kw_only=True, slots=True)
class HopStack(StackConfig):
    """way: one of WAYS; turn: of ping-pong."""

    way: str
    turn: str

    def verify_flags(self) -> list[str]:
        own = ["--spin-s", "0"] if self.way == "sleeping" else []
        return [*StackConfig.verify_flags(self), "--ping-pong", self.turn, *own]

    def draft_flags(self) -> list[str]:
        return [*StackConfig.draft_flags(self), *WAYS[self.way]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pair", type=Path, required=True, help="FOLDER of benchmarks.random_pair")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--draft-device", help="the draft's, if another")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--ways", default="socket,grpc", help=f"of {', '.join(WAYS)}")
    parser.add_argument("--ping-pong", default="off", help="off, auto, always, comma-separated")
    parser.add_argument("--concurrency", default="1,8,32", help="of these")
    parser.add_argument("--cycle", type=Path, help="result of benchmarks.gpu_cycle, for the hop")
    parser.add_argument("--json", type=Path, required=True)
    add_argument(parser)
    args = parser.parse_args()
    origin = provenance.Origin.at_start("python -m benchmarks.gpu_hop --pair FOLDER --json FILE")
    turns = args.ping_pong.split(",")
    rows = [r for way in args.ways.split(",") for turn in turns for r in measured(args, way, turn)]
    about = {
        "hardware": provenance.hardware(args.device),
        "date": origin.date,
        "versions": provenance.versions(),
        "command": origin.command,
    }
    devices = {"verify": args.device, "draft": args.draft_device or args.device}
    result: dict[str, Any] = {"label": LABEL, "devices": devices, **about, "rows": rows}
    result["tree"] = imported_tree(args.tree)
    inside = json.loads(args.cycle.read_text())["rows"] if args.cycle else []
    result["figures"] = [{**figure, **about} for figure in figures(rows, inside, devices)]
    args.json.write_text(json.dumps(result, indent=1) + "\n")
    print(f"{LABEL}; {devices}\n\n{table(rows)}\n")
    for found in result["figures"]:
        print(found["id"], found["value"], "goal", found["goal"])


def measured(args: argparse.Namespace, way: str, turn: str) -> Iterator[dict[str, Any]]:
    """A row a concurrency; servers anew for each width, whose acceptance is its first load's."""
    asked = {int(count): WIDTHS[int(count)] for count in args.concurrency.split(",")}
    for width in sorted(set(asked.values()), reverse=True):
        loads = [count for count, own in asked.items() if own == width]
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "timeline.json"
            config = HopStack(
                way=way,
                turn=turn,
                data_plane=way if way in ("in-process", "nccl") else None,
                target=args.pair / "target",
                draft=args.pair / "draft",
                mode="domino",
                device=args.device,
                draft_device=args.draft_device,
                dtype=args.dtype,
                width=width,
                max_sequences=32,
                kv_tokens=32 * (PROMPT + NEW + 256),
                synthetic_acceptance=str(DOMINO[loads[0]]),
                timeline=file,
                width_policy="auto" if turn == "auto" else None,
                show_logs=False,
            )
            vocab = open_target(config.target)[1].vocab_size
            with Stack(config) as stack:
                for count in loads:
                    say(f"{way}, ping-pong {turn}, width {width}, C{count}")
                    serve(stack.router_address, count, vocab)
            steps = [Step(**step) for step in json.loads(file.read_text())["steps"]]
        for count in loads:
            load = Load(concurrency=count, prompt=PROMPT, new=NEW, width=width)
            found = {"way": way, "ping_pong": turn, "concurrency": count, "width": width}
            yield found | asdict(times(steps, load, any_width=turn == "auto", halves=turn != "off"))


def serve(address: str, count: int, vocab: int) -> None:
    """So many clients at once, ROUNDS requests each."""

    def ask(number: int) -> None:
        draw = random.Random(number)
        with Client(address) as client:
            for _ in range(ROUNDS):
                ids = [draw.randrange(vocab) for _ in range(PROMPT)]
                client.generate(token_ids=ids, max_tokens=NEW, ignore_eos=True)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def figures(
    rows: Sequence[dict[str, Any]], inside: Sequence[dict[str, Any]], devices: dict[str, str]
) -> Iterator[dict[str, Any]]:
    """The issue's, by the socket; hops only where the one process' times are known."""
    cycles = {row["concurrency"]: row["ms"] for row in inside if row["arm"] == "domino"}
    places = "one GPU" if devices["verify"] == devices["draft"] else "two GPUs"
    for row in rows:
        count, ms = row["concurrency"], float(row["ms"])
        if row["way"] not in ("socket", "in-process") or row["ping_pong"] != "off":
            continue
        where = "one process" if row["way"] == "in-process" else places
        theirs = LENGTHS[spec.MODE_DFLASH][count] / VLLM_MS[count]
        ratio = DOMINO[count] / ms / theirs
        kind = "one_process" if row["way"] == "in-process" else "services"
        name = f"domino_over_vllm_dflash_{kind}_c{count}"
        yield figure(name, ratio, f"ratio ({where}", OVER_VLLM[count], lower=False)
        if row["way"] == "socket" and count in cycles and count in HOP_MS:
            hop = ms - cycles[count]
            yield figure(f"hop_ms_8b_c{count}", hop, f"ms ({where}", HOP_MS[count], lower=True)


def figure(name: str, value: float, unit: str, goal: float, *, lower: bool) -> dict[str, Any]:
    met = value <= goal if lower else value >= goal
    kind = f"{unit}; random weights, synthetic acceptance)"
    return {"id": name, "value": round(value, 4), "unit": kind, "goal": goal} | {
        "lower_is_better": lower,
        "met": met,
    }


def table(rows: Sequence[dict[str, Any]]) -> str:
    lines = []
    for r in rows:
        cells = [r["way"], r["ping_pong"], str(r["concurrency"]), str(r["width"]), f"{r['ms']:.3f}"]
        cells += [f"{r['tokens']:.2f}", f"{r['tok_s']:.0f}"]
        lines.append(cells + [f"{r['laps'][lap]:.3f}" for lap in LAPS])
    return text_table(("way", "ping-pong", "C", "width", "ms", "tokens", "tok/s", *LAPS), lines)


if __name__ == "__main__":
    main()
