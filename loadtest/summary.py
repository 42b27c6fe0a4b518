"""Records in, one flat dictionary out, with the names of SGLang's and vLLM's serving benchmarks.

ttft: first token. tpot: (E2E - TTFT) / (tokens - 1). itl: SGLang's, a chunk's gap divided by its
tokens and counted once a token. icl: vLLM's ITL, a gap a chunk; with speculation a chunk holds
several tokens. e2e: until the last token. accept_length: tokens per verify step, bonus included.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from loadtest.percentiles import spread_ms
from loadtest.record import Record
from loadtest.window import (
    mean_in_flight,
    most_in_flight,
    peak_tokens_per_s,
    steady,
    tokens_in,
    whole,
)


def summarise(records: Sequence[Record], settings: Mapping[str, Any]) -> dict[str, Any]:
    """settings: Plan.settings(). Latencies are of requests that succeeded; a failed one counts."""
    good = [r for r in records if r.ok]
    found: dict[str, Any] = {
        "backend": "domino-serve",
        "request_rate": settings["request_rate"] or "inf",
        "max_concurrency": None if settings["request_rate"] else settings["concurrency"],
        "completed": len(good),
        "failed": len(records) - len(good),
        "errors": _count(r.error.split(":")[0] for r in records if r.error),
        **_throughput(records, good, settings),
    }
    found |= spread_ms("ttft", [r.ttft_s for r in good])
    found |= spread_ms("tpot", [tpot_s(r) for r in good if r.tokens > 1])
    found |= spread_ms("itl", [gap for r in good for gap in itl_s(r)])
    found |= spread_ms("icl", [gap for r in good for gap in icl_s(r)])
    found |= spread_ms("e2e_latency", [r.e2e_s for r in good])
    found |= {f"{key}_e2el_ms": found[f"{key}_e2e_latency_ms"] for key in ("mean", "median", "p99")}
    found |= spread_ms("late", [r.sent_s - r.scheduled_s for r in records])
    found["drafts_lost"] = sum(_ran_plain(r, settings["mode"]) for r in good)
    return found | _speculation(good) | _server(good)


def tpot_s(record: Record) -> float:
    """Time per output token, the first left out."""
    return (record.e2e_s - record.ttft_s) / (record.tokens - 1)


def icl_s(record: Record) -> Iterator[float]:
    """Gaps between chunks."""
    yield from (b - a for a, b in pairwise(record.token_times_s))


def itl_s(record: Record) -> Iterator[float]:
    """Gaps between tokens: a chunk's tokens share its gap evenly."""
    for gap, count in zip(icl_s(record), record.token_counts[1:], strict=True):
        yield from [gap / count] * count


def _ran_plain(record: Record, asked: str | None) -> bool:
    """Whether a drafting arm's request lost its draft; one plain step may end every request."""
    if asked in (None, "ar") or record.width == 1:
        return asked not in (None, "ar", record.mode)
    return record.mode != asked or record.plain_steps > 1


def _throughput(
    records: Sequence[Record], good: Sequence[Record], settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Over the whole run, as both reference programs, and over its steady part."""
    if not records:
        return {"duration": 0.0, "output_throughput": 0.0}
    duration = whole(records).length_s
    read, written = sum(r.prompt_tokens for r in good), sum(r.tokens for r in good)
    found: dict[str, Any] = {
        "duration": duration,
        "total_input_tokens": read,
        "total_output_tokens": written,
        "request_throughput": len(good) / duration,
        "input_throughput": read / duration,
        "output_throughput": written / duration,
        "total_throughput": (read + written) / duration,
        "total_token_throughput": (read + written) / duration,
        "max_output_tokens_per_s": peak_tokens_per_s(good),
        "max_concurrent_requests": most_in_flight(records),
        "concurrency": sum(r.e2e_s for r in good) / duration,
    }
    return found | _steady(records, settings)


def _steady(records: Sequence[Record], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The part at full load. littles_law: mean in flight over what was to be kept in flight."""
    asked = None if settings["request_rate"] else settings["concurrency"]
    window = steady(records, asked)
    if window is None:
        return {"steady_output_throughput": None, "steady_in_flight": None, "littles_law": None}
    in_flight = mean_in_flight(records, window)
    return {
        "steady_output_throughput": tokens_in(records, window) / window.length_s,
        "steady_in_flight": in_flight,
        "littles_law": in_flight / asked if asked else None,
    }


def _speculation(good: Sequence[Record]) -> dict[str, Any]:
    """vLLM's spec_decode fields and SGLang's accept_length; a draft is a step with proposals."""
    steps, plain = sum(r.verify_steps for r in good), sum(r.plain_steps for r in good)
    proposed = sum(r.proposed_tokens for r in good)
    accepted = sum(r.accepted_tokens for r in good)
    drafts = steps - plain
    return {
        "accept_length": sum(r.step_tokens for r in good) / steps if steps else None,
        "verify_steps": steps,
        "spec_decode_num_drafts": drafts,
        "spec_decode_draft_tokens": proposed,
        "spec_decode_accepted_tokens": accepted,
        "spec_decode_acceptance_rate": accepted / proposed if proposed else None,
        "spec_decode_acceptance_length": 1 + accepted / drafts if drafts else None,
        "spec_decode_per_position_acceptance_rates": _by_position(good, drafts),
    }


def _by_position(good: Sequence[Record], drafts: int) -> list[float]:
    """Share of drafts that accepted position 1, 2, ..."""
    length = max((len(r.accepted_by_position) for r in good), default=0)
    totals = [0] * length
    for r in good:
        for place, count in enumerate(r.accepted_by_position):
            totals[place] += count
    return [total / drafts for total in totals] if drafts else []


def _server(good: Sequence[Record]) -> dict[str, float | None]:
    """Means of the server's own times per request."""
    names = ("queue_ms", "verify_ms", "draft_ms")
    return {
        f"mean_server_{name}": sum(getattr(r, name) for r in good) / len(good) if good else None
        for name in names
    }


def _count(values: Iterator[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for value in values:
        found[value] = found.get(value, 0) + 1
    return found
