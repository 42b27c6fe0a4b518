"""GPU memory and handles of a running service: by its own metrics, and by what the driver says."""

import re
import subprocess
from typing import Final
from urllib.request import urlopen

from tests.chaos.cluster import CALL_S, Member

_SAMPLE: Final = re.compile(
    r'^domino_(gpu_memory_bytes|cuda_ipc_handles)\{kind="(\w+)"\} (\S+)$', re.MULTILINE
)
_QUERY: Final = [
    "nvidia-smi",
    "--query-compute-apps=pid,used_memory",
    "--format=csv,noheader,nounits",
]
MIB: Final = 1 << 20


def usage(member: Member) -> dict[str, int]:
    """Counts of CUDA IPC handles and MiB of GPU memory; nothing of a service without metrics.

    driver_mib: only where the driver tells processes of this machine apart.
    """
    if not (port := member.options.get("metrics_port")):
        return {}
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=CALL_S) as page:
        samples = _SAMPLE.findall(page.read().decode())
    found = {
        f"{kind}_mib" if name.startswith("gpu") else f"handles_{kind}": float(value)
        for name, kind, value in samples
    }
    counts = {n: round(v / MIB if n.endswith("mib") else v) for n, v in found.items()}
    known = _of_the_driver()
    return counts | ({"driver_mib": known[member.pid]} if member.pid in known else {})


def _of_the_driver() -> dict[int, int]:
    """MiB by process id."""
    try:
        lines = subprocess.run(_QUERY, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return {}
    rows = [line.split(",") for line in lines.splitlines()]
    return {int(pid): int(mib) for pid, mib in rows if mib.strip().isdecimal()}
