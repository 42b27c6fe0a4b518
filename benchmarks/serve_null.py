"""What the load generator reaches against a server that computes nothing, at each load."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.serve_plan import Load, ServePlan
from benchmarks.service_processes import started
from loadtest.prompts import LoadPrompt
from loadtest.run import run
from loadtest.summary import summarise

TOKENS, ROUNDS = 64, 4
KEYS = ("output_throughput", "median_ttft_ms", "p99_ttft_ms", "median_icl_ms", "p99_icl_ms")


def null_baseline(plan: ServePlan, out: Path) -> dict[str, dict[str, Any]]:
    """Per closed-loop load: the ceiling in chunks/s (a token each) and the generator's own noise.

    A speculative answer holds several tokens a chunk, so chunks are what counts.
    """
    found: dict[str, dict[str, Any]] = {}
    with started("loadtest.null_server", {}) as server:
        for load in plan.loads:
            if load.request_rate is None:
                found[load.label] = measure(plan, load, server.address, out)
    return found


def measure(plan: ServePlan, load: Load, address: str, out: Path) -> dict[str, Any]:
    prompts = [
        LoadPrompt(workload="null", index=i, token_ids=(1,) * 8)
        for i in range(ROUNDS * load.concurrency)
    ]
    null = replace(
        plan.base,
        address=address,
        prompts=tuple(prompts),
        concurrency=load.concurrency,
        max_tokens=TOKENS,
        warm_ups=load.concurrency,
    )
    summary = summarise(run(null, out / f"null-{load.label}.jsonl").records, null.settings())
    return {key: summary[key] for key in KEYS}


def null_line(baseline: dict[str, dict[str, Any]]) -> str:
    parts = [
        f"{load} {found['output_throughput']:.0f} chunks/s, ICL p50 {found['median_icl_ms']:.2f} "
        f"p99 {found['p99_icl_ms']:.1f} ms"
        for load, found in baseline.items()
    ]
    return "load generator's ceiling (null server): " + ("; ".join(parts) or "not measured")
