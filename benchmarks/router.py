"""`domino-serve bench router`: the router by itself, a thousand streams over a null verify service.

Failures, memory wave by wave, CPU time a token, and the delay it adds to a chunk. Exit code 1 when
a stream failed.
"""

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import provenance
from benchmarks.cpu_plan import new_file
from benchmarks.other_work import PROC, process_ticks
from benchmarks.router_streams import Chunks, Wave, direct, run_wave, through_router
from benchmarks.service_processes import running
from benchmarks.text_table import text_table
from domino_cli.argument_types import positive
from domino_cli.models import DEFAULT_TARGET, resolve_model
from domino_cli.progress import say
from loadtest.arguments import rate
from loadtest.percentiles import percentile
from serving.options import Parser

PAGE = os.sysconf("SC_PAGE_SIZE")
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
FIRST_ID = 1000  # of the null service's answers: ordinary tokens of the embedded vocabulary


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """`waves` times `streams` at once, `chunks` each, one every chunk_ms."""

    streams: int
    chunks: int
    waves: int
    chunk_ms: float
    first_id: int = FIRST_ID


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """alone, single: one stream, without and with the router; direct, busy: all at once.

    rss_mb: the router's memory before, and after each wave. cpu_s: its time for the waves.
    """

    shape: Shape
    alone: Wave
    single: Wave
    direct: Wave
    busy: Sequence[Wave]
    rss_mb: Sequence[float]
    cpu_s: float

    @property
    def failed(self) -> int:
        """Streams that failed through the router."""
        return sum(len(wave.failures) for wave in (self.single, *self.busy))

    @property
    def tokens(self) -> int:
        return sum(wave.tokens for wave in self.busy)

    @property
    def grown_mb(self) -> float:
        """Memory after the last wave over that after the first, which fills every buffer."""
        return self.rss_mb[-1] - self.rss_mb[1]


def main(argv: Sequence[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    args = parser().parse_args(argv)
    origin = provenance.Origin.at_start(provenance.command("router", argv))
    shape = Shape(
        streams=args.streams, chunks=args.chunks, waves=args.waves, chunk_ms=args.chunk_ms
    )
    found = measure(resolve_model(args.target), shape)
    print(table(found))
    for failure in [text for wave in found.busy for text in wave.failures][:5]:
        say(f"failed: {failure}")
    if args.json:
        whole = origin.at_end()
        result = {"benchmark": "router", **whole, "figures": figures(found, whole)}
        args.json.write_text(json.dumps(result, indent=1) + "\n")
    return 1 if found.failed else 0


def parser() -> argparse.ArgumentParser:
    found = Parser(prog="domino-serve bench router", description=__doc__)
    found.add_argument("--streams", type=positive, default=1000, metavar="N", help="%(default)s")
    found.add_argument("--chunks", type=positive, default=12, metavar="N", help="%(default)s each")
    found.add_argument("--waves", type=positive, default=3, metavar="N", help="%(default)s")
    found.add_argument("--chunk-ms", type=rate, default=600.0, metavar="MS", help="%(default)s")
    found.add_argument("--target", default=DEFAULT_TARGET, help="whose tokenizer (%(default)s)")
    found.add_argument("--json", type=new_file, metavar="FILE", help="where the figures go")
    return found


def measure(target: Path, shape: Shape) -> Measured:
    """Starts the router and the null verify service and runs everything."""
    with running(target, shape) as (router, verify):
        return asyncio.run(_measure(router.address, router.pid, verify.address, shape))


async def _measure(router: str, pid: int, verify: str, shape: Shape) -> Measured:
    async def wave(chunks: Chunks, streams: int) -> Wave:
        return await run_wave(chunks, streams, shape.chunks, shape.first_id)

    async with direct(verify) as chunks:
        await run_wave(chunks, 1, 1, shape.first_id)  # connects
        alone, straight = await wave(chunks, 1), await wave(chunks, shape.streams)
    async with through_router(router) as chunks:
        await run_wave(chunks, 1, 1, shape.first_id)
        single = await wave(chunks, 1)
        begin, rss, busy = cpu_s(pid), [rss_mb(pid)], []
        for number in range(shape.waves):
            busy.append(await wave(chunks, shape.streams))
            rss.append(rss_mb(pid))
            say(f"wave {number + 1}: {len(busy[-1].failures)} failed, router {rss[-1]:.0f} MB")
        spent = cpu_s(pid) - begin
    return Measured(
        shape=shape,
        alone=alone,
        single=single,
        direct=straight,
        busy=busy,
        rss_mb=rss,
        cpu_s=spent,
    )


def rss_mb(pid: int) -> float:
    """Resident memory of a process; Linux."""
    return int((PROC / str(pid) / "statm").read_text().split()[1]) * PAGE / 1e6


def cpu_s(pid: int) -> float:
    return process_ticks(PROC / str(pid) / "stat") * TICK_S


def table(found: Measured) -> str:
    """Delays of chunks, with and without the router, then what it costs."""
    through = Wave(streams=found.shape.streams)
    for wave in found.busy:
        through.first_us += wave.first_us
        through.later_us += wave.later_us
    rows = [
        delay_row("1 stream, no router", found.alone),
        delay_row("1 stream, router", found.single),
        delay_row(f"{found.shape.streams} streams, no router", found.direct),
        delay_row(f"{found.shape.streams} streams, router", through),
    ]
    head = ("verify to client, ms", "first p50", "first p99", "chunk p50", "chunk p99")
    chunks = sum(wave.chunks for wave in found.busy)
    memory = ", ".join(f"{value:.0f}" for value in found.rss_mb)
    return "\n".join(
        [
            text_table(head, rows),
            f"streams failed: {found.failed} of {sum(w.streams for w in found.busy)}",
            f"router CPU: {1e6 * found.cpu_s / max(found.tokens, 1):.1f} us a token, "
            f"{1e6 * found.cpu_s / max(chunks, 1):.0f} us a chunk",
            f"router memory, MB, before and after each wave: {memory}",
        ]
    )


def delay_row(name: str, wave: Wave) -> list[str]:
    cells = [name]
    for values in (wave.first_us, wave.later_us):
        ordered = sorted(values)
        cells += [f"{percentile(ordered, p) / 1e3:.2f}" if ordered else "-" for p in (50, 99)]
    return cells


def figures(found: Measured, origin: dict[str, Any]) -> list[dict[str, Any]]:
    """What benchmarks.collect keeps."""
    unit = f"of {found.shape.streams} concurrent streams, {found.shape.waves} waves"
    values = [
        ("router_streams_failed", float(found.failed), unit, 0.0),
        ("router_cpu_us_per_token", 1e6 * found.cpu_s / max(found.tokens, 1), "us", None),
        ("router_memory_growth_mb", found.grown_mb, "MB, first to last wave", None),
    ]
    common = {key: origin[key] for key in ("date", "versions", "command")}
    return [
        {
            "id": name,
            "value": round(value, 3),
            "unit": unit,
            "goal": goal,
            "lower_is_better": True,
            "hardware": provenance.hardware("cpu"),
            **common,
        }
        for name, value, unit, goal in values
    ]


if __name__ == "__main__":
    from domino_cli.__main__ import main as cli

    sys.exit(cli(["bench", "router", *sys.argv[1:]]))
