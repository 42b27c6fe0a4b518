"""`python -m benchmarks.plot_serve RESULT.json OUT.svg`: a result of `bench serve` as one plot.

Output tokens/s by requests in flight and arm, mean over workloads; what the README shows.
"""

import argparse
import json
from collections import defaultdict
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.report_svg import bars
from benchmarks.serve_arm import arm as named

STYLE = "<style>text{font:11px sans-serif;fill:#333}.g{stroke:#ddd}</style>"


def plot(result: dict[str, Any]) -> str:
    """A stand-alone SVG."""
    speeds: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for cell in result["cells"]:
        if cell["incomplete"] is None:
            title = named(cell["arm"]).title
            speeds[cell["load"]][title].append(cell["summary"]["output_throughput"])
    means = {
        load: {title: fmean(values) for title, values in arms.items()}
        for load, arms in speeds.items()
    }
    found = bars("Output throughput, mean over workloads", "tokens/s", means)
    head, rest = found.split(">", 1)
    if "xmlns" not in head:
        head += ' xmlns="http://www.w3.org/2000/svg"'
    return f"{head}>{STYLE}{rest}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("result", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    options.out.write_text(plot(json.loads(options.result.read_text())))


if __name__ == "__main__":
    main()
