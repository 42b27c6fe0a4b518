"""Whether a comparison had its machine for itself; Linux."""

import os
import resource
from pathlib import Path

STAT = Path("/proc/stat")
MOST_OTHER_WORK = 0.25  # of the CPU time; beyond it, threads that wait for each other cost tenfold
BUSY = slice(0, 8)  # fields of the "cpu" line; guest time is part of user time already
IDLE = (3, 4)  # idle, iowait


class Machine:
    """Counts from its making on. Ours is what this process and its ended children used."""

    def __init__(self) -> None:
        self._begin = self._seconds()

    def other_work(self) -> float | None:
        """Share of all CPU time since then that went to others; None where it is unknown.

        Call it when every child has ended.
        """
        if self._begin is None or (now := self._seconds()) is None:
            return None
        total, busy, ours = (b - a for a, b in zip(self._begin, now, strict=True))
        return max(0.0, busy - ours) / total if total > 0 else 0.0

    def _seconds(self) -> tuple[float, float, float] | None:
        """All CPU time, the busy part of it, and ours."""
        if not STAT.exists():
            return None
        ticks = [int(field) for field in STAT.read_text().split()[1:][BUSY]]
        tick = 1 / os.sysconf("SC_CLK_TCK")
        total = sum(ticks) * tick
        used = [resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        ours = sum(one.ru_utime + one.ru_stime for one in used)
        return total, total - sum(ticks[i] for i in IDLE) * tick, ours
