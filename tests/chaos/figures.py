"""Results of the chaos runs in, the figures that have goals out."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.provenance import Origin, cpu, versions
from benchmarks.text_table import text_table

Result = Mapping[str, Any]
# Of a process that lived through a storm: handlers' threads and connections are kept for later,
# and a segment for each of two peers.
MOST_MORE: Final = {"files": 8, "threads": 64, "segments": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A figure; `also`: what has to hold besides for the goal to be met. runs: it is made of."""

    id: str
    runs: Sequence[Result]
    value: float
    unit: str
    goal: float = 0
    lower: bool = True
    also: bool = True

    def as_json(self, origin: Origin) -> dict[str, Any]:
        kept = self.value <= self.goal if self.lower else self.value >= self.goal
        machines = dict.fromkeys(run.get("hardware", str(cpu())) for run in self.runs)
        return {
            "id": self.id,
            "value": self.value,
            "unit": self.unit,
            "goal": self.goal,
            "lower_is_better": self.lower,
            "hardware": "; ".join(machines),
            "date": origin.date,
            "versions": versions(),
            "command": origin.command,
            "met": bool(kept and self.also),
        }


def _draft_kill(run: Result, args: argparse.Namespace) -> Found:
    return Found(
        id="chaos_draft_kill_identical",
        runs=[run],
        value=run["identical"],
        unit=f"streams identical of {run['streams']}, {run['hit']} of them hit",
        goal=args.draft_streams,
        lower=False,
        also=run["longest_gap_s"] <= 1.0 and not run["leaks"],
    )


def _verify_kill(run: Result, args: argparse.Namespace, *others: Result) -> Found:
    """others: of a rank killed, of one frozen and of a group frozen."""
    return Found(
        id="chaos_verify_kill_identical",
        runs=[run, *others],
        value=run["identical"],
        unit=f"streams identical of {run['streams']}, {run['hit']} of them hit",
        goal=args.verify_streams,
        lower=False,
        also=not run["leaks"] and all(o["identical"] == o["streams"] for o in others),
    )


def _cancels(run: Result, args: argparse.Namespace) -> Found:
    return Found(
        id="chaos_cancel_leaks",
        runs=[run],
        value=sum(run["leaks"].values()) + run["neighbours_wrong"],
        unit=f"held after {run['cancels']} cancels, wrong neighbours added",
        also=run["cancels"] >= args.cancels,
    )


def _fuzz(run: Result, args: argparse.Namespace) -> Found:
    counts = [rpc["messages"] for rpc in run.values()]
    total, least = sum(counts), min(counts)
    return Found(
        id="fuzz_failures",
        runs=list(run.values()),
        value=sum(len(rpc["failures"]) + len(rpc.get("held", ())) for rpc in run.values()),
        unit=f"crashes and hangs of {total} messages, {least} or more to each of {len(run)} RPCs",
        also=least >= args.messages,
    )


def _soak(run: Result, args: argparse.Namespace) -> Found:
    steady = all(map(_is_steady, run["memory"])) and not run["leaks"]
    return Found(
        id="soak_wrong_tokens",
        runs=[run],
        value=run["wrong"],
        unit=f"wrong answers of {run['requests']} in {run['seconds']} s",
        also=steady and not run["failed"] and run["seconds"] >= args.soak_s,
    )


def _is_steady(service: Result) -> bool:
    few = all(service.get(f"more_{name}", 0) <= most for name, most in MOST_MORE.items())
    return bool(service["is_flat"] and few)


def _device_storm(run: Result, args: argparse.Namespace) -> Found:
    services = run["more"].values()
    kept = sum(abs(n) for more in services for name, n in more.items() if "handles" in name)
    few = all(more[name] <= most for more in services for name, most in MOST_MORE.items())
    steady = all(map(_has_an_end, run["memory_mib"].values()))
    return Found(
        id="device_storm_leaks",
        runs=[run],
        value=sum(run["leaks"].values()) + kept,
        unit=f"held after {sum(run['blows'].values())} blows, CUDA IPC handles added",
        also=few and steady and not run["wrong"] + run["failed"],
    )


def _has_an_end(samples: Sequence[int]) -> bool:
    """What is made once, such as a library's workspace, is there before half of the blows."""
    half = len(samples) // 2
    return max(samples[half:]) <= max(samples[:half] or samples)


def _rolling(run: Result, args: argparse.Namespace) -> Found:
    return Found(
        id="rolling_update_failed_requests",
        runs=[run],
        value=run["failed"],
        unit=f"of {run['requests']} requests",
        also=not (run["wrong"] or run["leaks"]),
    )


# By run, with the runs whose results a figure takes in.
JUDGES: Final[dict[str, tuple[Callable[..., Found], Sequence[str]]]] = {
    "draft_kill": (_draft_kill, ()),
    "verify_kill": (_verify_kill, ("rank_kill", "rank_freeze", "freeze")),
    "cancels": (_cancels, ()),
    "fuzz": (_fuzz, ()),
    "soak": (_soak, ()),
    "rolling": (_rolling, ()),
    "device_storm": (_device_storm, ()),
}


def figures(
    results: Mapping[str, Result], origin: Origin, args: argparse.Namespace
) -> list[dict[str, Any]]:
    """Of the runs that were made; a goal holds for a run of that length."""
    return [
        judge(results[name], args, *(results[o] for o in others if o in results)).as_json(origin)
        for name, (judge, others) in JUDGES.items()
        if name in results
    ]


def table(found: Sequence[Mapping[str, Any]]) -> str:
    """For people."""
    rows = [
        [f["id"], f"{f['value']:g}", f["unit"], f"{f['goal']:g}", "yes" if f["met"] else "NO"]
        for f in found
    ]
    return text_table(["id", "value", "", "goal", "met"], rows)
