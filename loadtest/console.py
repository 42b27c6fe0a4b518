"""One run's summary as the block of lines that both reference programs print."""

from collections.abc import Mapping
from typing import Any

WIDTH = 64
TOP = (
    ("Successful requests", "completed"),
    ("Failed requests", "failed"),
    ("Traffic request rate (req/s)", "request_rate"),
    ("Max request concurrency", "max_concurrency"),
    ("Benchmark duration (s)", "duration"),
    ("Total input tokens", "total_input_tokens"),
    ("Total generated tokens", "total_output_tokens"),
    ("Request throughput (req/s)", "request_throughput"),
    ("Input token throughput (tok/s)", "input_throughput"),
    ("Output token throughput (tok/s)", "output_throughput"),
    ("Output throughput, steady part (tok/s)", "steady_output_throughput"),
    ("Peak output token throughput (tok/s)", "max_output_tokens_per_s"),
    ("Total token throughput (tok/s)", "total_throughput"),
    ("Peak concurrent requests", "max_concurrent_requests"),
    ("Concurrency (sum of E2E / duration)", "concurrency"),
    ("Little's law, in flight / asked", "littles_law"),
    ("P99 sent later than scheduled (ms)", "p99_late_ms"),
    ("Accept length", "accept_length"),
    ("Acceptance rate (accepted / proposed)", "spec_decode_acceptance_rate"),
)
PARTS = (
    ("End-to-end latency", "E2E", "e2e_latency", ("mean", "median", "p90", "p99")),
    ("Time to first token", "TTFT", "ttft", ("mean", "median", "p99")),
    ("Time per output token (excl. first)", "TPOT", "tpot", ("mean", "median", "p99")),
    ("Inter-token latency, per token (SGLang)", "ITL", "itl", ("mean", "median", "p95", "p99")),
    ("Inter-chunk latency (vLLM's ITL)", "ICL", "icl", ("mean", "median", "p95", "p99", "max")),
)


def block(summary: Mapping[str, Any], title: str = "Serving benchmark result") -> str:
    lines = [f" {title} ".center(WIDTH, "=")]
    lines += [_line(text, summary.get(key)) for text, key in TOP]
    for heading, short, key, shown in PARTS:
        lines.append(heading.center(WIDTH, "-"))
        names = (f"{what}_{key}_ms" for what in shown)
        pairs = zip(shown, names, strict=True)
        lines += [_line(f"{_cap(what)} {short} (ms)", summary.get(name)) for what, name in pairs]
    rates = summary.get("spec_decode_per_position_acceptance_rates") or []
    if rates:
        lines.append("Acceptance by position".center(WIDTH, "-"))
        lines.append(" ".join(f"{rate:.2f}" for rate in rates))
    return "\n".join([*lines, "=" * WIDTH])


def _cap(word: str) -> str:
    return word.upper() if word.startswith("p") else word.capitalize()


def _line(text: str, value: Any) -> str:
    return f"{text + ':':<44}{shown(value):>20}"


def shown(value: Any) -> str:
    """A number with two decimals, a dash for none."""
    if value is None:
        return "-"
    return f"{value:.2f}" if isinstance(value, float) else str(value)
