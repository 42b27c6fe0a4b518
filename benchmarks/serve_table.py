"""Cells in, the published tables out: throughput and speed-up, macro, acceptance, latencies."""

from collections.abc import Callable, Sequence

from benchmarks.serve_cell import PLAIN, Cells
from benchmarks.serve_published import MACRO
from benchmarks.text_table import text_table
from loadtest.prompts import label

LATENCIES = (
    ("output tok/s", "output_throughput", "{:.1f}"),
    ("output tok/s at full load", "steady_output_throughput", "{:.1f}"),
    ("total tok/s", "total_throughput", "{:.1f}"),
    ("mean E2E ms", "mean_e2e_latency_ms", "{:.0f}"),
    ("mean TTFT ms", "mean_ttft_ms", "{:.0f}"),
    ("mean TPOT ms", "mean_tpot_ms", "{:.2f}"),
    ("p99 ITL ms", "p99_itl_ms", "{:.1f}"),
    ("p99 ICL ms", "p99_icl_ms", "{:.1f}"),
    ("acceptance length", "accept_length", "{:.2f}"),
    ("in flight / asked", "littles_law", "{:.2f}"),
)


def tables(cells: Cells, titles: dict[str, str]) -> str:
    """All of them, one after another; titles: of arms by name."""
    parts = [throughput_table(cells, titles, load) for load in cells.loads]
    parts += [macro_table(cells, titles)]
    parts += [acceptance_table(cells, titles, load) for load in cells.loads]
    parts += [serving_table(cells, titles, load) for load in cells.loads]
    return "\n\n".join([*parts, identity_line(cells, titles), *partial_lines(cells)])


def throughput_table(cells: Cells, titles: dict[str, str], load: str) -> str:
    """Output tok/s (speed-up), the fastest speculative arm of each row marked."""

    def cell(arm: str, workload: str) -> str:
        speed = cells.mean("output_throughput", arm, load, workload)
        if speed is None:
            return "-"
        ratio = cells.speedup(arm, load, workload)
        text = f"{speed:.1f}" + (f" ({ratio:.2f}x)" if ratio else "")
        return f"**{text}**" if arm == cells.fastest(load, workload) else text

    return (
        f"{load}: output tok/s (speed-up over AR), **fastest speculative arm**\n\n"
        + by_workload(cells, titles, cells.arms, cell)
    )


def macro_table(cells: Cells, titles: dict[str, str]) -> str:
    """Arithmetic means of the speed-ups; below them the published ones of these arms."""
    note = ""
    arms = [arm for arm in cells.arms if arm != PLAIN]
    rows = [[at, *(ratio(cells.macro(arm, at)) for arm in arms)] for at in cells.loads]
    rows.append(["Overall", *(ratio(cells.overall(arm)) for arm in arms)])
    for at in cells.loads:  # for comparison, of another model on other hardware
        published = MACRO.get(at, {})
        if any(arm in published for arm in arms):
            rows.append([f"{at}, published*", *(ratio(published.get(arm)) for arm in arms)])
            note = "\n* Qwen3.6-27B, 2 x A100, SGLang"
    table = text_table(["", *(titles[arm] for arm in arms)], rows)
    return f"Macro speed-up over AR\n\n{table}{note}"


def acceptance_table(cells: Cells, titles: dict[str, str], load: str) -> str:
    """Tokens per verify step, the bonus token included."""

    def cell(arm: str, workload: str) -> str:
        length = cells.mean("accept_length", arm, load, workload)
        return "-" if length is None else f"{length:.3f}"

    arms = [arm for arm in cells.arms if arm != PLAIN]
    return f"{load}: acceptance length\n\n" + by_workload(cells, titles, arms, cell)


def serving_table(cells: Cells, titles: dict[str, str], load: str) -> str:
    """A row a metric, a column an arm; means over workloads and repeats."""

    def cell(arm: str, key: str, layout: str) -> str:
        values = [cells.mean(key, arm, load, w) for w in cells.workloads]
        known = [value for value in values if value is not None]
        return layout.format(sum(known) / len(known)) if known else "-"

    rows = [[name, *(cell(a, key, layout) for a in cells.arms)] for name, key, layout in LATENCIES]
    head = ["metric", *(titles[arm] for arm in cells.arms)]
    return f"{load}: serving metrics, mean over workloads\n\n" + text_table(head, rows)


def identity_line(cells: Cells, titles: dict[str, str]) -> str:
    shares = {titles[arm]: cells.identical(arm) for arm in cells.arms if arm != PLAIN}
    known = [f"{name} {share:.1%}" for name, share in shares.items() if share is not None]
    return "Answers identical to AR's: " + (", ".join(known) or "not compared")


def partial_lines(cells: Cells) -> list[str]:
    """What is missing; such cells are in no mean."""
    return [
        f"PARTIAL {c.arm} {c.load} {c.workload} repeat {c.repeat + 1}: {c.incomplete}"
        for c in cells.incomplete()
    ]


def by_workload(
    cells: Cells, titles: dict[str, str], arms: Sequence[str], cell: Callable[[str, str], str]
) -> str:
    rows = [[label(w), *(cell(arm, w) for arm in arms)] for w in cells.workloads]
    return text_table(["workload", *(titles[arm] for arm in arms)], rows)


def ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}x"
