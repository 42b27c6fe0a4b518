"""Served speed at Qwen3-8B's shapes where answers end and others begin: one GPU, one process.

Weights are RANDOM and acceptance is SYNTHETIC, as in benchmarks.gpu_cycle; here each client asks
again as soon as it is answered, so that many steps run somebody's prompt beside the others.
"""

import argparse
import datetime
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import triton

from benchmarks.closed_loop import serve
from benchmarks.gpu_cycle import LABEL, MOST, TOKENS, load_of
from benchmarks.gpu_pair import GpuPair
from benchmarks.gpu_verify_tree import add_argument, imported_tree
from benchmarks.text_table import text_table
from domino_serve.v1 import speculation_pb2 as spec

COMMAND = "python -m benchmarks.gpu_joins --json FILE"
ROUNDS = {1: 8, 8: 6, 32: 4}  # requests of each client, by concurrency
HEAD = ("arm", "C", "width", "steps", "with prompts", "ms", "others ms", "tok/s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--concurrency", default="8,32", help="of 1, 8, 32")
    parser.add_argument("--plain", action="store_true", help="AR too")
    add_argument(parser)
    options = parser.parse_args()
    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    rows = measured([int(count) for count in options.concurrency.split(",")], plain=options.plain)
    result = {
        "label": f"{LABEL}, 128 to 256 new, clients ask again at once",
        "hardware": torch.cuda.get_device_name(),
        "date": date,
        "versions": {"torch": torch.__version__, "triton": triton.__version__},
        "command": COMMAND,
        "tree": imported_tree(options.tree),
        "rows": rows,
    }
    options.json.write_text(json.dumps(result, indent=1) + "\n")
    print(f"{result['label']}\n\n{table(rows)}")


def measured(counts: list[int], *, plain: bool) -> list[dict[str, Any]]:
    """One row an arm and concurrency, after a round to warm up."""
    gpu, rows = GpuPair(), []
    for mode in (spec.MODE_DOMINO, None) if plain else (spec.MODE_DOMINO,):
        room: dict[str, Any] = {"max_sequences": MOST, "tokens": TOKENS}
        if mode is None:
            pair = gpu.plain(**room)
        else:
            pair = gpu.drafted(**room, widths=[1, 8, 16], draft_tokens=2 * TOKENS)
        for count in counts:
            load = load_of(count, mode)
            serve(pair, load, rounds=3)
            found = asdict(serve(pair, load, rounds=ROUNDS[count]))
            arm = "domino" if mode else "ar"
            rows.append({"arm": arm, "concurrency": count, "width": load.width, **found})
            print(json.dumps(rows[-1]), flush=True)
        del pair
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """A row an arm and concurrency."""
    lines = []
    for r in rows:
        cells = [r["arm"], *(str(r[name]) for name in ("concurrency", "width", "steps"))]
        cells += [f"{r['joins']:.2f}", f"{r['join_ms']:.3f}", f"{r['other_ms']:.3f}"]
        lines.append([*cells, f"{r['tok_s']:.0f}"])
    return text_table(HEAD, lines)


if __name__ == "__main__":
    main()
