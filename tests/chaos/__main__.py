"""`python -m tests.chaos`: the long form; prints the goals' figures and keeps them as JSON."""

import argparse
import json
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from benchmarks.provenance import Origin, cpu, hardware
from tests.chaos.cancels import storm
from tests.chaos.cluster import Cluster, cluster
from tests.chaos.device_storm import storm_of_kills
from tests.chaos.figures import figures, table
from tests.chaos.kills import (
    freeze,
    freeze_rank,
    kill_drafts,
    kill_rank,
    kill_router,
    kill_verifies,
)
from tests.chaos.overload import flood
from tests.chaos.rolling import update_all
from tests.chaos.soak import soak
from tests.chaos.tokenizer import save_tokenizer
from tests.chaos.traffic import Case, known_cases
from tests.fuzz.campaign import campaign
from tests.recorded_models import DOMINO_SHIFT
from tests.services.checkpoints import other_weights

Run = Callable[[Path, Sequence[Case], argparse.Namespace], dict[str, Any]]
PART = ("date", "command", "tree", "versions")
ROOM: Any = {"max_sequences": 8, "max_waiting": 16}  # so that waiting and being refused happen
ON_GPU = "device_storm"  # only when it is named


def _services(
    tokenizer: Path, args: argparse.Namespace, **options: Any
) -> AbstractContextManager[Cluster]:
    """On CPUs, both sides with the plane that was asked for."""
    plane = {"data_plane": args.data_plane}
    return cluster(tokenizer, draft=plane, **plane, **ROOM, **options)


def _draft_kill(tokenizer: Path, cases: Sequence[Case], args: argparse.Namespace) -> dict[str, Any]:
    with _services(tokenizer, args) as services:
        kills = kill_drafts(services, cases, args.draft_streams, args.seed).as_json()
        return {**kills, "leaks": services.leaks()}


def _verify_kill(
    tokenizer: Path, cases: Sequence[Case], args: argparse.Namespace
) -> dict[str, Any]:
    with _services(tokenizer, args) as services:
        kills = kill_verifies(services, cases, args.verify_streams, args.seed).as_json()
        return {**kills, "leaks": services.leaks()}


def _rank_kill(tokenizer: Path, cases: Sequence[Case], args: argparse.Namespace) -> dict[str, Any]:
    with _services(tokenizer, args, ranks=2) as services:
        return kill_rank(services, cases, args.seed)


def _rank_freeze(
    tokenizer: Path, cases: Sequence[Case], args: argparse.Namespace
) -> dict[str, Any]:
    with _services(tokenizer, args, ranks=2, step_timeout_s=5.0) as services:
        return freeze_rank(services, cases, args.seed)


def _cancels(tokenizer: Path, cases: Sequence[Case], args: argparse.Namespace) -> dict[str, Any]:
    with _services(tokenizer, args) as services:
        return {
            **storm(services, cases, args.cancels, args.seed),
            "overload": flood(services, cases, 100),
            "router_killed": kill_router(services, cases),
        }


def _freeze(tokenizer: Path, cases: Sequence[Case], args: argparse.Namespace) -> dict[str, Any]:
    with _services(tokenizer, args) as services:
        found = {
            member.module: freeze(services, member, cases, args.seed)
            for member in (services.verifies[0], services.drafts[0])
        }
        both = {name: sum(f[name] for f in found.values()) for name in ("streams", "identical")}
        return {**both, **found}


def _rolling(tokenizer: Path, cases: Sequence[Case], args: argparse.Namespace) -> dict[str, Any]:
    draft = other_weights(tokenizer.parent / "other-draft")
    with _services(tokenizer, args, drafts=2, routers=2) as services:
        return update_all(services, cases, args.seed, draft=draft)


def _soak(tokenizer: Path, cases: Sequence[Case], args: argparse.Namespace) -> dict[str, Any]:
    weights = other_weights(tokenizer.parent / "other-draft"), DOMINO_SHIFT
    with _services(tokenizer, args, drafts=2) as services:
        return soak(services, cases, args.soak_s, args.seed, weights, _signalled())


def _signalled() -> threading.Event:
    """Set by Ctrl-C or SIGTERM: a soak that was stopped is a shorter one."""
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    return stop


def _device_storm(
    tokenizer: Path, cases: Sequence[Case], args: argparse.Namespace
) -> dict[str, Any]:
    verify, draft = (
        {"device": device, "page_size": 64, "data_plane": args.data_plane}
        for device in args.devices.split(",")
    )
    draft |= {"max_sessions": 16}
    pairs = {"verifies": args.pairs, "drafts": args.pairs}
    with cluster(tokenizer, **pairs, draft=draft, measured=True, **ROOM, **verify) as services:
        found = storm_of_kills(services, cases, args.storm_s, args.seed)
    where = {"devices": args.devices, "pairs": args.pairs}
    return {**where, "hardware": hardware(args.devices), **found}


def _fuzz(tokenizer: Path, cases: Sequence[Case], args: argparse.Namespace) -> dict[str, Any]:
    return campaign(args.messages, args.seed, args.rpcs)


RUNS: dict[str, Run] = {
    "draft_kill": _draft_kill,
    "verify_kill": _verify_kill,
    "rank_kill": _rank_kill,
    "rank_freeze": _rank_freeze,
    "freeze": _freeze,
    "cancels": _cancels,
    "rolling": _rolling,
    "fuzz": _fuzz,
    "soak": _soak,
    ON_GPU: _device_storm,
}


def main(argv: Sequence[str] | None = None) -> int:
    """0 when every goal that was run is met."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument(
        "runs", nargs="*", metavar="RUN", help=f"of {', '.join(RUNS)}; all but {ON_GPU} if none"
    )
    parser.add_argument("--draft-streams", type=int, default=200)
    parser.add_argument("--verify-streams", type=int, default=100)
    parser.add_argument("--cancels", type=int, default=2000)
    parser.add_argument("--messages", type=int, default=100_000, help="fuzzed messages of each RPC")
    parser.add_argument("--rpcs", default="", help="fuzz those only whose names begin so")
    parser.add_argument("--soak-s", type=float, default=1800.0, help="seconds of the soak")
    parser.add_argument("--storm-s", type=float, default=60.0, help=f"seconds of the {ON_GPU}")
    parser.add_argument(
        "--devices", default="cuda,cuda", help=f"the {ON_GPU}'s, of verify and draft (%(default)s)"
    )
    parser.add_argument(
        "--pairs",
        type=int,
        default=2,
        help=f"verify groups and drafts of the {ON_GPU}; with one "
        "of each steps may begin early (%(default)s)",
    )
    parser.add_argument(
        "--data-plane", default="auto", help="how rows go, in every run (%(default)s)"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="file for the results")
    parser.add_argument(
        "--with",
        dest="earlier",
        nargs="*",
        type=Path,
        default=[],
        metavar="FILE",
        help="results of earlier runs, to be kept with these",
    )
    args = parser.parse_args(argv)
    if unknown := set(args.runs) - set(RUNS):
        parser.error(f"unknown runs {', '.join(sorted(unknown))}; known: {', '.join(RUNS)}")
    line = " ".join(["python -m tests.chaos", *(sys.argv[1:] if argv is None else argv)])
    origin, (results, parts) = Origin.at_start(line), earlier(args.earlier)
    runs = args.runs or [name for name in RUNS if name not in results and name != ON_GPU]
    cases = known_cases(16, args.seed) if runs else []
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = save_tokenizer(Path(folder))
        for name in runs:
            found = made_here(name, RUNS[name](tokenizer, cases, args))
            results[name] = {**results.get("fuzz", {}), **found} if name == "fuzz" else found
            print(f"{name}: {json.dumps(found)}", flush=True)
    made = figures(results, origin, args)
    print(table(made))
    if args.json:
        kept = {"benchmark": "chaos", **origin.at_end(), "cpu": cpu().as_json()}
        kept |= {"figures": made, "parts": parts, "results": results}
        args.json.write_text(json.dumps(kept, indent=1) + "\n")
    return int(any(not figure["met"] for figure in made))


def made_here(name: str, found: dict[str, Any]) -> dict[str, Any]:
    """A run's results with the machine they are from; those of fuzzing each, by RPC."""
    here = {"hardware": str(cpu())}
    return {rpc: {**here, **r} for rpc, r in found.items()} if name == "fuzz" else {**here, **found}


def earlier(files: Sequence[Path]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Results of other runs, those of fuzzing joined by RPC, and where they come from."""
    results: dict[str, Any] = {}
    parts: list[dict[str, Any]] = []
    for file in files:
        kept = json.loads(file.read_text())
        parts += [*kept.get("parts", ()), {key: kept[key] for key in PART}]
        for name, found in kept["results"].items():
            results[name] = {**results.get("fuzz", {}), **found} if name == "fuzz" else found
    return results, parts


if __name__ == "__main__":
    sys.exit(main())
