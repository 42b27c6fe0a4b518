"""Measurements of one dtype as tables for people and as JSON for programs."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.cpu_result import PLAIN, Measured, Row, rows
from benchmarks.sample import Sample, acceptance_length, throughput
from benchmarks.text_table import text_table

HEAD = ("workload", "arm", "width", "tokens/s", "vs transformers", "vs AR", "acceptance length")
SWEEP_HEAD = ("arm", "width", "tokens/s", "vs AR", "acceptance length")


def table(measured: Measured) -> str:
    head = (*HEAD, "TTFT ms", "identical to AR")
    return text_table(head, [cells(row) for row in rows(measured)])


def cells(row: Row) -> list[str]:
    return [
        row.workload,
        row.arm,
        str(row.width),
        f"{row.tokens_per_s:.1f}",
        f"{row.vs_transformers:.2f}",
        f"{row.vs_ar:.2f}",
        f"{row.acceptance_length:.2f}",
        f"{row.ttft_ms:.0f}",
        f"{row.identical:.0%}",
    ]


def sweep_table(sweep: Sequence[Sample]) -> str:
    """Totals over the sweep's prompts, one line per arm and width."""
    plain = throughput([s for s in sweep if s.arm == PLAIN])
    found = []
    for arm, width in sorted({(s.arm, s.width) for s in sweep}):
        mine = [s for s in sweep if (s.arm, s.width) == (arm, width)]
        speed, length = throughput(mine), acceptance_length(mine)
        found.append([arm, str(width), f"{speed:.1f}", f"{speed / plain:.2f}", f"{length:.2f}"])
    return text_table(SWEEP_HEAD, found)


def as_json(measured: Measured) -> dict[str, Any]:
    """Everything but the texts and token ids of answers, which quote the workloads."""
    plain = {s.key: s.token_ids for s in measured.of(PLAIN)}
    return {
        "plan": asdict(measured.plan),
        "threads": measured.threads,
        "other_work": measured.other_work,
        "rows": [asdict(row) for row in rows(measured)],
        "samples": [
            {**sample_json(s), "identical": s.token_ids == plain[s.key]} for s in measured.samples
        ],
        "sweep": [sample_json(s) for s in measured.sweep],
    }


def sample_json(sample: Sample) -> dict[str, Any]:
    return {
        "workload": sample.prompt.workload,
        "index": sample.prompt.index,
        "arm": sample.arm,
        "width": sample.width,
        "tokens": len(sample.token_ids),
        "ttft_s": round(sample.ttft_s, 4),
        "total_s": round(sample.total_s, 4),
        "verify_steps": sample.verify_steps,
        "step_tokens": sample.step_tokens,
        "accepted_by_position": sample.accepted_by_position,
        "attempts": sample.attempts,
    }
