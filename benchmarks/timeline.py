"""`domino-serve bench timeline FILE`: where a verify service's steps spend their time.

FILE is what `python -m verify_service --timeline FILE` wrote when it ended; --trace makes a file
for Perfetto or chrome://tracing of the last steps.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.cpu_plan import new_file
from benchmarks.text_table import text_table
from benchmarks.timeline_trace import trace
from domino_cli.errors import UsageError
from domino_cli.progress import say
from loadtest.percentiles import percentile
from serving.options import Parser

# Parts of a step in the order they happen, each from a step's fields.
PARTS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "host: plan": (("plan_ns",), ()),
    "verify": (("verify_ns",), ()),
    "host: commit": (("commit_ns",), ()),
    "row transfer": (("send_ns",), ()),
    "draft queue": (("draft_queue_ns",), ()),
    "draft append": (("draft_append_ns",), ()),
    "draft backbone": (("draft_backbone_ns",), ()),
    "draft rollout": (("draft_rollout_ns",), ()),
    "hop": (
        ("wait_ns",),
        ("draft_queue_ns", "draft_append_ns", "draft_backbone_ns", "draft_rollout_ns"),
    ),
}
Step = Mapping[str, int]


def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser(prog="domino-serve bench timeline", description=__doc__)
    parser.add_argument("file", type=Path, metavar="FILE", help="written by the verify service")
    parser.add_argument("--trace", type=new_file, metavar="OUT.json", help="Chrome trace")
    args = parser.parse_args(argv)
    found = read_timeline(args.file)
    print(timeline_table(found))
    if args.trace:
        events = trace(found["steps"])
        args.trace.write_text(json.dumps(events) + "\n")
        say(f"{args.trace}: open it at https://ui.perfetto.dev or chrome://tracing")
    return 0


def read_timeline(file: Path) -> dict[str, Any]:
    """{"count", "sums", "steps"}; UsageError for another file."""
    try:
        found = json.loads(file.read_text())
        if {"count", "sums", "steps"} <= found.keys():
            return dict(found)
    except (OSError, ValueError, AttributeError) as error:
        raise UsageError(f"{file}: no timeline: {error}") from error
    raise UsageError(f"{file}: no timeline: keys count, sums, steps are missing")


def part_ns(step: Step, part: str) -> int:
    """Nanoseconds of a part of a step, or of the sums of many."""
    plus, minus = PARTS[part]
    return max(0, sum(step[name] for name in plus) - sum(step[name] for name in minus))


def total_ns(step: Step) -> int:
    """The whole step."""
    return sum(step[f"{lap}_ns"] for lap in ("plan", "verify", "commit", "send", "wait"))


def timeline_table(found: Mapping[str, Any]) -> str:
    """Each part over the kept steps without prompts: share, mean, median, p99; then by batch."""
    every: Sequence[Step] = found["steps"]
    steps = [step for step in every if not step["prompt_positions"]]
    if not steps:
        return "no decoding steps were run"
    whole = sum(map(total_ns, steps))
    rows = [row(name, [part_ns(step, name) for step in steps], whole) for name in PARTS]
    rows.append(row("step", [total_ns(step) for step in steps], whole))
    text = text_table(("part", "share", "mean ms", "p50 ms", "p99 ms"), rows)
    prompts = len(every) - len(steps)
    kept = f"{len(steps)} decoding steps and {prompts} with prompts, the last of {found['count']}"
    return f"{text}\n({kept})\n\n{batch_table(steps)}"


def row(name: str, ns: Sequence[int], whole: int) -> list[str]:
    ordered = sorted(ns)
    times = (sum(ns) / len(ns), percentile(ordered, 50), percentile(ordered, 99))
    return [name, f"{sum(ns) / max(whole, 1):.1%}", *(f"{value / 1e6:.3f}" for value in times)]


def batch_table(steps: Sequence[Step], most: int = 8) -> str:
    """Median ms of a step's parts by sequences in it, the most frequent batches."""
    sizes = [step["sequences"] for step in steps]
    frequent = sorted(set(sizes), key=lambda size: -sizes.count(size))[:most]
    rows = []
    for size in sorted(frequent):
        mine = [step for step in steps if step["sequences"] == size]
        parts = [percentile(sorted(part_ns(s, name) for s in mine), 50) / 1e6 for name in PARTS]
        rows.append([str(size), str(len(mine)), *(f"{value:.3f}" for value in parts)])
    return text_table(("sequences", "steps", *PARTS), rows)


def means_ms(found: Mapping[str, Any]) -> dict[str, float]:
    """Mean milliseconds of each part over the kept decoding steps."""
    steps = [step for step in found["steps"] if not step["prompt_positions"]]
    count = max(len(steps), 1)
    return {name: sum(part_ns(step, name) for step in steps) / count / 1e6 for name in PARTS}


if __name__ == "__main__":
    from domino_cli.__main__ import main as cli

    sys.exit(cli(["bench", "timeline", *sys.argv[1:]]))
