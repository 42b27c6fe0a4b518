"""Width policy auto on one GPU against every fixed width and plain decoding, at Qwen3-8B's shapes.

Weights are RANDOM and acceptance is SYNTHETIC: proposal j is accepted in rate^j of the steps. Every
load is a number of requests in flight and the positions each has; AR is our own, without a draft or
a projection loaded. The best width runs before auto and behind it, since a GPU that gets warm slows
down. Prompts are not run: their KV is what the pages hold. Speeds count the tokens that each step's
width gives on average, so that acceptance adds no noise of its own.
"""

import argparse
import datetime
import json
from collections.abc import Iterator
from dataclasses import asdict
from itertools import product
from pathlib import Path
from statistics import harmonic_mean, median
from typing import Any

import torch
import triton

from benchmarks.gpu_pair import GpuPair
from benchmarks.gpu_verify_tree import add_argument, imported_tree
from benchmarks.pair_steps import Load, Pair
from benchmarks.text_table import text_table
from verify_service.table_width import TableWidth

COMMAND = "python -m benchmarks.gpu_auto --json FILE"
LABEL = "RANDOM WEIGHTS, SYNTHETIC ACCEPTANCE, Qwen3-8B shapes, bfloat16"
CONCURRENCIES, CONTEXTS, MOST_TOKENS = (1, 8, 32, 64, 128), (640, 4096, 16384), 530_000
STEPS, LONG, WARM = 28, 144, 48  # steps with drafts; the fewest tokens of an arm, and before all
TOKENS = MOST_TOKENS + max(CONCURRENCIES) * (256 + 192)
WIDTHS = (8, 16)
RATES = {"high": 0.88, "low": 0.5, "poor": 0.2}  # 7.25, 2.0 and 1.25 tokens a step of width 16
AR_REPEATS = 3
GOALS = {"auto_over_best_fixed_min": 0.97, "auto_over_ar_min": 0.98}
Place = tuple[int, int]
Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--rates", default=",".join(RATES), help="names of acceptance rates")
    every = ",".join(map(str, CONCURRENCIES))
    parser.add_argument("--concurrency", default=every, help="of these")
    add_argument(parser)
    options = parser.parse_args()
    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    about = {
        "hardware": torch.cuda.get_device_name(),
        "date": date,
        "versions": {"torch": torch.__version__, "triton": triton.__version__},
        "command": COMMAND,
    }
    rows: list[Row] = []
    result: Row = {"label": LABEL, **about, "rows": rows}
    counts = [int(count) for count in options.concurrency.split(",")]
    for found in measured(options.rates.split(","), counts):
        rows.append(found)
        result["tree"] = imported_tree(options.tree)
        result["figures"] = [{**figure, **about} for figure in figures(rows)]
        options.json.write_text(json.dumps(result, indent=1) + "\n")  # kept if it is cut short
    print(f"{LABEL}\n\n{table(rows)}\n")
    for found in result["figures"]:
        print(found["id"], found["value"], "goal", found["goal"])


def places(counts: list[int]) -> list[Place]:
    return [(c, at) for c in counts for at in CONTEXTS if c * at <= MOST_TOKENS]


def measured(rates: list[str], counts: list[int]) -> Iterator[Row]:
    """One row a place and acceptance: tokens/s of AR, of each width, of auto."""
    everywhere = places(counts)
    pair = GpuPair()
    alone = pair.plain(max_sequences=max(CONCURRENCIES), tokens=TOKENS)
    plain = {place: plain_speeds(alone, place) for place in everywhere}
    del alone
    drafted = pair.drafted(max_sequences=max(CONCURRENCIES), tokens=TOKENS, widths=[1, *WIDTHS])
    for count, width in product(counts, WIDTHS):  # a graph's first steps take longer
        drafted.run(load_of((count, CONTEXTS[0]), width, RATES["low"], WARM))
    for name in rates:
        for place in everywhere:
            yield row(drafted, place, name, plain[place])


def plain_speeds(pair: Pair, place: Place) -> list[float]:
    load = load_of(place, 1, None, LONG)
    pair.run(load)
    return [pair.run(load).expected_tok_s for _ in range(AR_REPEATS)]


def load_of(place: Place, width: int, rate: float | None, new: int) -> Load:
    accepted = [rate ** (j + 1) for j in range(width - 1)] if rate else []
    return Load(
        concurrency=place[0],
        prompt=place[1],
        new=new,
        width=width,
        acceptance=",".join(f"{x:.6f}" for x in accepted) or None,
        skip_prompt=True,
    )


def tokens(rate: float) -> int:
    """What STEPS steps of the widest give a request, LONG at least; all arms write as many: steps
    grow with the context, and a GPU slows down after some."""
    return round(max(STEPS * sum(rate**j for j in range(max(WIDTHS))), LONG))


def row(pair: Pair, place: Place, name: str, plain: list[float]) -> Row:
    """Widths and auto beside AR's speeds; the policy has served the same load before."""
    rate, most = RATES[name], max(WIDTHS)
    assert pair.costs is not None
    policy = TableWidth(pair.costs, most - 1)
    load = load_of(place, most, rate, tokens(rate))
    pair.run(load, policy)  # it learns, and the GPU is as warm for every arm
    fixed = {f"b{width}": load_of(place, width, rate, load.new) for width in WIDTHS}
    runs = {arm: [pair.run(of_one).expected_tok_s] for arm, of_one in fixed.items()}
    auto = pair.run(load, policy)
    best = max(runs, key=lambda arm: runs[arm])
    if runs[best][0] > median(plain):
        runs[best].append(pair.run(fixed[best]).expected_tok_s)
    speeds = {"ar": median(plain), **{arm: harmonic_mean(run) for arm, run in runs.items()}}
    spread = median(abs(x - speeds["ar"]) for x in plain) / speeds["ar"]
    found = {"concurrency": place[0], "context": place[1], "acceptance": name, "tok_s": speeds}
    found |= {"fixed_runs": runs}
    found |= {"auto": asdict(auto), "ar_mad": spread, "over_ar": auto.expected_tok_s / speeds["ar"]}
    found["over_best"] = auto.expected_tok_s / max(speeds.values())
    print(json.dumps(found), flush=True)
    return found


def figures(rows: list[Row]) -> list[Row]:
    """The least of all places; noise is 2 median deviations of AR's repeats."""
    worst = {"auto_over_best_fixed_min": "over_best", "auto_over_ar_min": "over_ar"}
    found = []
    for name, key in worst.items():
        least = min(rows, key=lambda row: float(row[key]))
        where = f"C{least['concurrency']}, context {least['context']}, {least['acceptance']}"
        value, noise = float(least[key]), 2 * max(float(row["ar_mad"]) for row in rows)
        found.append(
            {
                "id": name,
                "value": round(value, 4),
                "unit": f"ratio ({where}; random weights, synthetic acceptance)",
                "goal": GOALS[name],
                "met": value >= GOALS[name],
                "lower_is_better": False,
                "noise": noise,
            }
        )
    return found


def table(rows: list[Row]) -> str:
    """A row a place and acceptance."""
    arms = ("ar", *(f"b{width}" for width in WIDTHS))
    head = ("acceptance", "C", "context", *arms, "auto", "tokens a step", "over AR", "over best")
    lines = []
    for r in rows:
        cells = [r["acceptance"], str(r["concurrency"]), str(r["context"])]
        cells += [f"{r['tok_s'][arm]:.0f}" for arm in arms]
        cells += [f"{r['auto']['expected_tok_s']:.0f}", f"{r['auto']['tokens']:.2f}"]
        lines.append([*cells, f"{r['over_ar']:.3f}", f"{r['over_best']:.3f}"])
    return text_table(head, lines)


if __name__ == "__main__":
    main()
