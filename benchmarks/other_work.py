"""How much of the machine was busy with other things while something was measured; Linux only."""

from collections.abc import Iterable
from pathlib import Path

PROC = Path("/proc")
# Fields of the "cpu" line of /proc/stat, in ticks; guest time is part of user time already.
BUSY = slice(0, 8)
IDLE = (3, 4)  # idle, iowait


class OtherWork:
    """Counts from its making on; `pids` are the processes that are measured, and must live on."""

    def __init__(self, pids: Iterable[int], proc: Path = PROC) -> None:
        self._proc, self._pids = proc, list(pids)
        self._begin = self._ticks()

    def share(self) -> float | None:
        """Share of all CPU time since then that went to others, stolen time included; or None."""
        if self._begin is None or (now := self._ticks()) is None:
            return None
        total, idle, ours = (b - a for a, b in zip(self._begin, now, strict=True))
        return max(0.0, total - idle - ours) / total if total else 0.0

    def _ticks(self) -> tuple[int, int, int] | None:
        """All CPU time, idle time, and the time of our processes."""
        if not (self._proc / "stat").exists():
            return None
        cpu = [int(field) for field in (self._proc / "stat").read_text().split()[1:][BUSY]]
        ours = sum(process_ticks(self._proc / str(pid) / "stat") for pid in self._pids)
        return sum(cpu), sum(cpu[i] for i in IDLE), ours


def process_ticks(stat: Path) -> int:
    """User and system time; the process' name, which may hold spaces, ends at the last bracket."""
    fields = stat.read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
