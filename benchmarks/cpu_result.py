"""Samples of one dtype in, the rows of its table and the kept figures out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from benchmarks.cpu_plan import Plan
from benchmarks.provenance import Cpu
from benchmarks.sample import (
    Sample,
    acceptance_length,
    identical_share,
    median_ratio,
    median_ttft_s,
    throughput,
)

PEER, PLAIN = "transformers", "ar"


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """threads: of every arm's model. other_work: share of the CPU time that was not ours.

    sweep chose the widths, samples are the measurement.
    """

    plan: Plan
    threads: int
    other_work: float | None
    sweep: Sequence[Sample]
    samples: Sequence[Sample]

    @property
    def workloads(self) -> list[str]:
        return list(dict.fromkeys(s.prompt.workload for s in self.samples))

    def of(self, arm: str, workload: str | None = None) -> list[Sample]:
        """An arm's samples of one workload, or of all."""
        return [s for s in self.samples if s.arm == arm and workload in (None, s.prompt.workload)]

    def differing(self) -> list[Sample]:
        """Drafted answers that are not AR's. In float32 there must be none."""
        plain = {s.key: s.token_ids for s in self.of(PLAIN)}
        drafted = [s for s in self.samples if s.width > 1]
        return [s for s in drafted if s.token_ids != plain[s.key]]

    @property
    def is_exact(self) -> bool:
        return self.plan.dtype != "float32" or not self.differing()


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """An arm on a workload; "macro" is the mean over workloads, "total" all tokens by all time.

    vs_*: this arm's tokens/s over the other's; of a workload the median over its prompts.
    ttft_ms: median over prompts. identical: share of answers with AR's token ids.
    """

    workload: str
    arm: str
    width: int
    tokens_per_s: float
    vs_transformers: float
    vs_ar: float
    acceptance_length: float
    ttft_ms: float
    identical: float


def rows(measured: Measured) -> list[Row]:
    """Per workload, then macro, then total; in each the arms from the peer to Domino."""
    arms = dict.fromkeys((PEER, PLAIN, *sorted({s.arm for s in measured.samples})))
    found = [[workload_row(measured, name, arm) for arm in arms] for name in measured.workloads]
    macro = [macro_row(of_arm) for of_arm in zip(*found, strict=True)]
    total = [total_row(measured, arm) for arm in arms]
    return [row for part in (*found, macro, total) for row in part]


def workload_row(measured: Measured, workload: str, arm: str) -> Row:
    mine, peer, plain = (measured.of(name, workload) for name in (arm, PEER, PLAIN))
    return Row(
        workload=workload,
        arm=arm,
        width=mine[0].width,
        tokens_per_s=throughput(mine),
        vs_transformers=median_ratio(mine, peer),
        vs_ar=median_ratio(mine, plain),
        acceptance_length=acceptance_length(mine),
        ttft_ms=1e3 * median_ttft_s(mine),
        identical=identical_share(mine, plain),
    )


def macro_row(of_arm: Sequence[Row]) -> Row:
    """Mean over workloads."""
    return Row(
        workload="macro",
        arm=of_arm[0].arm,
        width=of_arm[0].width,
        tokens_per_s=fmean(row.tokens_per_s for row in of_arm),
        vs_transformers=fmean(row.vs_transformers for row in of_arm),
        vs_ar=fmean(row.vs_ar for row in of_arm),
        acceptance_length=fmean(row.acceptance_length for row in of_arm),
        ttft_ms=fmean(row.ttft_ms for row in of_arm),
        identical=fmean(row.identical for row in of_arm),
    )


def total_row(measured: Measured, arm: str) -> Row:
    mine, peer, plain = (measured.of(name) for name in (arm, PEER, PLAIN))
    return Row(
        workload="total",
        arm=arm,
        width=mine[0].width,
        tokens_per_s=throughput(mine),
        vs_transformers=throughput(mine) / throughput(peer),
        vs_ar=throughput(mine) / throughput(plain),
        acceptance_length=acceptance_length(mine),
        ttft_ms=1e3 * median_ttft_s(mine),
        identical=identical_share(mine, plain),
    )


def figures(measured: Measured, origin: Mapping[str, Any], cpu: Cpu) -> list[dict[str, Any]]:
    """The figures benchmarks.collect keeps, all of them float32 and macro over the workloads.

    cpu_ar_vs_transformers: our AR's tokens/s over transformers'. cpu_domino_speedup and
    cpu_dflash_speedup: over our AR, at the width the sweep chose, or at those of the services'
    policy. cpu_domino_acceptance: tokens per verify step there; units name the width.
    """
    assert measured.plan.dtype == "float32", "the kept figures are float32"
    macro = {row.arm: row for row in rows(measured) if row.workload == "macro"}
    ar, dflash, domino = macro[PLAIN], macro["dflash"], macro["domino"]
    width = "width" if measured.plan.widths else "width auto up to"
    steps = f"tokens per verify step (float32, {width} {domino.width})"
    found = [
        ("cpu_ar_vs_transformers", ar.vs_transformers, "x (float32)", 1.25),
        ("cpu_domino_speedup", domino.vs_ar, f"x AR (float32, {width} {domino.width})", 1.8),
        ("cpu_dflash_speedup", dflash.vs_ar, f"x AR (float32, {width} {dflash.width})", None),
        ("cpu_domino_acceptance", domino.acceptance_length, steps, None),
    ]
    common = {key: origin[key] for key in ("date", "versions", "command")}
    return [
        {
            "id": name,
            "value": round(value, 4),
            "unit": unit,
            "goal": goal,
            "lower_is_better": False,
            "hardware": str(cpu),
            **common,
        }
        for name, value, unit, goal in found
    ]
