"""Results of the chaos runs in, the figures that have goals out."""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any, Final

from benchmarks.provenance import Origin, cpu, versions
from benchmarks.text_table import text_table

Result = Mapping[str, Any]
MORE_FILES: Final = 8
MORE_THREADS: Final = 24
PEERS: Final = 2  # a segment each


def figures(
    results: Mapping[str, Result], origin: Origin, args: argparse.Namespace
) -> list[dict[str, Any]]:
    """Of the runs that were made; a goal holds for a run of that length."""
    found: list[dict[str, Any]] = []

    def add(
        *runs: Result, id_: str, value: float, unit: str, goal: float, lower: bool, also: bool
    ) -> None:
        met = bool((value <= goal if lower else value >= goal) and also)
        kept = {"id": id_, "value": value, "unit": unit, "goal": goal, "lower_is_better": lower}
        machines = dict.fromkeys(run.get("hardware", str(cpu())) for run in runs)
        kept |= {"hardware": "; ".join(machines), "date": origin.date, "versions": versions()}
        found.append({**kept, "command": origin.command, "met": met})

    if run := results.get("draft_kill"):
        add(
            run,
            id_="chaos_draft_kill_identical",
            value=run["identical"],
            unit=f"streams identical of {run['streams']}, {run['hit']} of them hit",
            goal=args.draft_streams,
            lower=False,
            also=run["longest_gap_s"] <= 1.0 and not run["leaks"],
        )
    if run := results.get("verify_kill"):
        others = [results[name] for name in ("rank_kill", "freeze") if name in results]
        add(
            *(run, *others),
            id_="chaos_verify_kill_identical",
            value=run["identical"],
            unit=f"streams identical of {run['streams']}, {run['hit']} of them hit",
            goal=args.verify_streams,
            lower=False,
            also=not run["leaks"] and all(o["identical"] == o["streams"] for o in others),
        )
    if run := results.get("cancels"):
        add(
            run,
            id_="chaos_cancel_leaks",
            value=sum(run["leaks"].values()) + run["neighbours_wrong"],
            unit=f"held after {run['cancels']} cancels, wrong neighbours added",
            goal=0,
            lower=True,
            also=run["cancels"] >= args.cancels,
        )
    if run := results.get("fuzz"):
        counts = [rpc["messages"] for rpc in run.values()]
        add(
            *run.values(),
            id_="fuzz_failures",
            value=sum(len(rpc["failures"]) + len(rpc.get("held", ())) for rpc in run.values()),
            unit=f"crashes and hangs of {sum(counts)} messages, {min(counts)} or more to each of "
            f"{len(run)} RPCs",
            goal=0,
            lower=True,
            also=min(counts) >= args.messages,
        )
    if run := results.get("soak"):
        flat = all(map(_is_steady, run["memory"])) and not run["leaks"]
        add(
            run,
            id_="soak_wrong_tokens",
            value=run["wrong"],
            unit=f"wrong answers of {run['requests']} in {run['seconds']} s",
            goal=0,
            lower=True,
            also=flat and not run["failed"] and run["seconds"] >= args.soak_s,
        )
    if run := results.get("rolling"):
        add(
            run,
            id_="rolling_update_failed_requests",
            value=run["failed"],
            unit=f"of {run['requests']} requests",
            goal=0,
            lower=True,
            also=not (run["wrong"] or run["leaks"]),
        )
    return found


def _is_steady(service: Result) -> bool:
    """Of one that lived through a soak: handlers' threads and connections are kept for later."""
    most = {"more_files": MORE_FILES, "more_threads": MORE_THREADS, "more_segments": PEERS}
    few = all(service.get(name, 0) <= count for name, count in most.items())
    return bool(service["is_flat"] and few)


def table(found: Sequence[Mapping[str, Any]]) -> str:
    """For people."""
    rows = [
        [f["id"], f"{f['value']:g}", f["unit"], f"{f['goal']:g}", "yes" if f["met"] else "NO"]
        for f in found
    ]
    return text_table(["id", "value", "", "goal", "met"], rows)
