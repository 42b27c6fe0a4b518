"""Mean, median, deviation and percentiles of a list, named and scaled as the reference programs."""

import math
from collections.abc import Sequence
from statistics import fmean, pstdev

SHOWN = (50, 90, 95, 99)


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Linear between neighbours, as numpy.percentile; `ordered` is sorted and not empty."""
    place = (len(ordered) - 1) * percent / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def spread_ms(name: str, seconds: Sequence[float]) -> dict[str, float | None]:
    """mean_NAME_ms, median_, std_, p90_, p95_, p99_ and max_; None each without values."""
    keys = ("mean", "median", "std", "p90", "p95", "p99", "max")
    if not seconds:
        return {f"{key}_{name}_ms": None for key in keys}
    ordered = sorted(seconds)
    middle, *tail = (percentile(ordered, percent) for percent in SHOWN)
    found = (fmean(ordered), middle, pstdev(ordered), *tail, ordered[-1])
    return {f"{key}_{name}_ms": 1e3 * value for key, value in zip(keys, found, strict=True)}
