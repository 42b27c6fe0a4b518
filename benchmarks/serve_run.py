"""Runs the arms of `bench serve`: fresh servers for each arm and repeat; cells kept at once."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.rounds import rotated
from benchmarks.serve_arm import Arm
from benchmarks.serve_cell import Cell
from benchmarks.serve_plan import Load, ServePlan
from benchmarks.serve_published import PUBLISHED, published_length
from domino_cli.errors import CommandError
from domino_cli.progress import say
from domino_cli.stack import Stack, StackConfig
from loadtest.record import Record
from loadtest.run import Outcome, run
from loadtest.summary import summarise

Keep = Callable[[Cell], None]
Places = Sequence[tuple[Load, str]]


def run_all(plan: ServePlan, config: StackConfig, out: Path) -> list[Cell]:
    """Every cell, also of arms whose servers died: those are marked, and the next arm goes on."""
    cells: list[Cell] = []
    with (out / "cells.jsonl").open("w", buffering=1) as file:

        def keep(cell: Cell) -> None:
            cells.append(cell)
            file.write(json.dumps(cell.as_json()) + "\n")

        for repeat in range(plan.repeats):
            for arm in rotated(plan.arms, repeat):
                try:
                    run_arm(plan, arm, repeat, config, out, keep)
                except CommandError as error:
                    say(f"{arm.name}, repeat {repeat + 1}: PARTIAL: {error}")
                    mark_missing(plan, arm, repeat, cells, str(error), keep)
    return cells


def run_arm(
    plan: ServePlan, arm: Arm, repeat: int, config: StackConfig, out: Path, keep: Keep
) -> None:
    """All loads and workloads of an arm on its own servers; CommandError when they die."""
    mine = arm_config(config, arm, out / f"{arm.name}-r{repeat}.timeline.json")
    for acceptance, places in servers(plan, arm):
        with Stack(replace(mine, synthetic_acceptance=acceptance)) as stack:
            for load, workload in places:
                place = new_cell(arm, load, workload, repeat)
                load_plan = plan.load_plan(arm, load, workload, stack.router_address)
                outcome = run(load_plan, out / place.records_name)
                cell = filled(place, outcome, load_plan.settings())
                keep(cell)
                say(progress(cell))
                if outcome.incomplete:
                    stack.check()


def servers(plan: ServePlan, arm: Arm) -> Iterator[tuple[str | None, Places]]:
    """What each start of an arm's servers is for: all of it, or with published lengths a cell."""
    places = [(load, workload) for load in plan.loads for workload in plan.prompts]
    if arm.is_plain or plan.synthetic != PUBLISHED:
        yield None if arm.is_plain else plan.synthetic, places
        return
    for load, workload in places:
        yield published_length(load.label, arm.name, workload), [(load, workload)]


def arm_config(config: StackConfig, arm: Arm, timeline: Path) -> StackConfig:
    """AR runs without a draft loaded at all: nothing holds it back. Only `auto` may end blocks."""
    mine = replace(config, mode=arm.mode, timeline=timeline)
    if arm.is_plain:
        return replace(mine, draft=None, width=None, width_policy=None, data_plane=None)
    width, policy = arm.width or config.width, arm.width_policy or config.width_policy
    whole = not arm.auto or config.synthetic_acceptance is not None
    threshold = None if whole else config.confidence_threshold
    return replace(mine, width=width, width_policy=policy, confidence_threshold=threshold)


def new_cell(arm: Arm, load: Load, workload: str, repeat: int) -> Cell:
    """Without figures; until it has some it is incomplete."""
    return Cell(
        arm=arm.name,
        load=load.label,
        workload=workload,
        repeat=repeat,
        summary={},
        answers={},
        incomplete="was not run",
    )


def filled(place: Cell, outcome: Outcome, settings: Mapping[str, Any]) -> Cell:
    return replace(
        place,
        summary=summarise(outcome.records, settings),
        answers={answer_key(r): r.answer for r in outcome.records if r.ok},
        incomplete=outcome.incomplete,
    )


def answer_key(record: Record) -> str:
    return f"{record.workload}/{record.index}/{record.turn}"


def mark_missing(
    plan: ServePlan, arm: Arm, repeat: int, cells: list[Cell], reason: str, keep: Keep
) -> None:
    """A cell without figures wherever the arm did not get to."""
    first, *log = reason.splitlines()
    why = " ".join([first, *(line.strip() for line in log[-1:])])
    there = {(c.load, c.workload) for c in cells if (c.arm, c.repeat) == (arm.name, repeat)}
    for load in plan.loads:
        for workload in plan.prompts:
            if (load.label, workload) not in there:
                place = new_cell(arm, load, workload, repeat)
                keep(replace(place, incomplete=why))


def progress(cell: Cell) -> str:
    found = cell.summary
    length = found.get("accept_length")
    mark = f" PARTIAL: {cell.incomplete}" if cell.incomplete else ""
    accepted = f", acceptance length {length:.2f}" if length else ""
    return (
        f"{cell.arm} {cell.load} {cell.workload} repeat {cell.repeat + 1}: "
        f"{found['output_throughput']:.1f} tokens/s{accepted}{mark}"
    )
