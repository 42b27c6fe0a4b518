"""The router by itself: a short run of what `bench router` does with a thousand streams."""

import asyncio
from pathlib import Path

import pytest

from benchmarks.collect import check_figure
from benchmarks.null_verify import TOKENS, age_us, stamp
from benchmarks.router import Shape, figures, main, measure, table
from benchmarks.router_streams import run_wave, through_router
from benchmarks.service_processes import started
from tests.router.tiny_tokenizer import save_target


def test_a_stamp_tells_its_age() -> None:
    """Prevents delays that come from a wrong clock: made now, read now, within the id range."""
    ids = stamp(20)
    assert len(ids) == TOKENS and all(20 <= token < 84 for token in ids)
    assert 0 <= age_us(ids, 20) < 10_000_000
    late = [*ids]
    late[0] -= 1 if late[0] > 20 else -1
    assert abs(age_us(late, 20) - age_us(ids, 20)) < 10_000_000


def test_many_streams_all_arrive_whole_and_memory_stays(tmp_path: Path) -> None:
    """Prevents a router that loses streams under load, or keeps something of each."""
    target = save_target(tmp_path / "target")
    shape = Shape(streams=150, chunks=4, waves=4, chunk_ms=20.0, first_id=20)
    found = measure(target, shape)
    assert found.failed == 0, found.busy
    assert [wave.tokens for wave in found.busy] == [150 * 4 * TOKENS] * 4
    assert [len(wave.first_us) for wave in found.busy] == [150] * 4
    assert found.grown_mb < 24
    assert "streams failed: 0 of 600" in table(found)
    origin = {"date": "2026-11-29T10:00:00+00:00", "versions": {}, "command": "x"}
    kept = figures(found, origin)
    assert kept[0]["id"] == "router_streams_failed" and kept[0]["value"] == 0
    for figure in kept:
        check_figure(figure["id"], figure)


def test_streams_beyond_the_routers_limit_are_counted_as_failed(tmp_path: Path) -> None:
    """Prevents a test that reports no failure because it cannot see one."""
    target = save_target(tmp_path / "target")
    options = {"vocab_size": 400, "chunk_ms": 50.0, "first_id": 20}

    async def wave(address: str) -> int:
        async with through_router(address) as chunks:
            return len((await run_wave(chunks, 8, 3, 20)).failures)

    with (
        started("benchmarks.null_verify", options) as verify,
        started("router", {"target": target, "verify": verify.address, "max_requests": 5}) as one,
    ):
        assert asyncio.run(wave(one.address)) == 3


@pytest.mark.parametrize(
    "flags", [["--streams", "0"], ["--chunk-ms", "-1"], ["--json", "/nowhere/x"]]
)
def test_bad_flags_are_refused(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Prevents a run of nothing."""
    with pytest.raises(SystemExit) as end:
        main(flags)
    assert end.value.code == 2
    assert flags[0] in capsys.readouterr().err
