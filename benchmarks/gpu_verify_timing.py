"""Times of captured work on one GPU; a copy's bandwidth, to which others are compared."""

import statistics
from collections.abc import Callable

import torch


def capture(work: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """Warms `work` up, then captures it."""
    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph


def replay_us(graph: torch.cuda.CUDAGraph, *, rounds: int = 7, replays: int = 10) -> float:
    """Microseconds a replay: the median of rounds, the first left out."""
    times: list[float] = []
    for _ in range(rounds + 1):
        begin, end = (_event() for _ in range(2))
        begin.record()
        for _ in range(replays):
            graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1000 / replays)
    return statistics.median(times[1:])


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def graph_us(work: Callable[[], object], calls: int = 1) -> float:
    """Microseconds a call where `work` makes `calls` of them."""
    return replay_us(capture(work), replays=3) / calls


def copy_tb_s() -> float:
    """TB/s of a device-to-device copy of 4 GiB, bytes read and written.

    Not captured: a graph would leave the copy to the copy engines, which are slower.
    """
    source = torch.randint(2**31, (2**29,), device="cuda")
    target = torch.empty_like(source)
    times: list[float] = []
    for _ in range(10):
        begin, end = _event(), _event()
        begin.record()
        target.copy_(source)
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return 2 * source.nbytes / statistics.median(times) / 1e9
