"""Where a figure comes from: hardware, versions, time, command and the state of the tree."""

import hashlib
import json
import os
import platform
import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).parent.parent
CPUINFO = Path("/proc/cpuinfo")
# What decides the speed of matrix products; the second line is native bfloat16.
CPU_FEATURES = ("avx2", "avx512f", "avx512_vnni", "asimd", "sve")
BFLOAT16_FEATURES = ("avx512_bf16", "amx_bf16", "bf16")
PACKAGES = ("domino-serve", "torch", "transformers", "grpcio", "tokenizers", "triton")
# Results and reports cannot change a run; everything else that git does not ignore can.
NO_CODE = (":(exclude)benchmarks/*.json", ":(exclude)benchmarks/*.md")


@dataclass(frozen=True, kw_only=True, slots=True)
class Cpu:
    """model: the processor's own name. cores: those this process may use."""

    model: str
    cores: int
    features: tuple[str, ...]

    @property
    def has_bfloat16(self) -> bool:
        """Whether bfloat16 products run in hardware; otherwise those of many rows are slow."""
        return any(name in self.features for name in BFLOAT16_FEATURES)

    def __str__(self) -> str:
        bfloat16 = "native" if self.has_bfloat16 else "no native"
        return f"{self.model}, {self.cores} cores, {bfloat16} bfloat16"

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "has_bfloat16": self.has_bfloat16}


def cpu() -> Cpu:
    """This machine's processor; the features are known on Linux only."""
    found: dict[str, str] = {}
    lines = CPUINFO.read_text().splitlines() if CPUINFO.exists() else []
    for line in lines:
        name, _, value = line.partition(":")
        found.setdefault(name.strip(), value.strip())
    flags = found.get("flags", found.get("Features", "")).split()
    known = [name for name in (*CPU_FEATURES, *BFLOAT16_FEATURES) if name in flags]
    model = found.get("model name") or platform.processor() or platform.machine()
    return Cpu(model=model, cores=usable_cores(), features=tuple(known))


def usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def versions(packages: Sequence[str] = PACKAGES) -> dict[str, str]:
    """Installed version of each package that is there, Python's and the system's added."""
    found = {"python": platform.python_version(), "system": platform.platform()}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """When, how and on which code a run began."""

    date: str
    command: str
    tree: dict[str, Any]

    @classmethod
    def at_start(cls, command: str, root: Path = ROOT) -> Self:
        """date: UTC to the second, in ISO 8601, which decides which of two figures is newer."""
        date = datetime.now(UTC).isoformat(timespec="seconds")
        return cls(date=date, command=command, tree=tree(root))

    def at_end(self, root: Path = ROOT) -> dict[str, Any]:
        """The keys every result has; clean only if the tree is still the one of the start."""
        same = tree(root) == self.tree
        found = {**self.tree, "clean": self.tree["clean"] and same}
        return {
            "date": self.date,
            "command": self.command,
            "tree": found,
            "versions": versions(),
        }


def command(name: str, arguments: Sequence[str]) -> str:
    """The shell line that repeats a run, such as `domino-serve bench cpu --prompts 4`."""
    return shlex.join(["domino-serve", "bench", name, *arguments])


def tree(root: Path = ROOT) -> dict[str, Any]:
    """{"commit", "clean"}: clean when the commit alone tells what code ran.

    Outside a git checkout the file `tree.json` beside an archive tells (benchmarks.gpu_verify_tree
    writes it); without one commit is None, and clean False.
    """
    commit = git(root, "rev-parse", "HEAD")
    if commit is None:
        return archived(root)
    changes = git(root, "status", "--porcelain", "--untracked-files=all", "--", ".", *NO_CODE)
    return {"commit": commit, "clean": changes == ""}


def archived(root: Path) -> dict[str, Any]:
    """As `tree`: clean when every file of Python there is the commit's."""
    if not (file := root / "tree.json").exists():
        return {"commit": None, "clean": False}
    known = json.loads(file.read_text())
    code = root.rglob("*.py")
    same = all(known["blobs"].get(path.relative_to(root).as_posix()) == blob(path) for path in code)
    return {"commit": known["commit"], "clean": same}


def blob(path: Path) -> str:
    """git's name of a file's content."""
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def git(root: Path, *arguments: str) -> str | None:
    """Output of a git command, None when it fails or there is no git."""
    try:
        result = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True)
    except FileNotFoundError:
        return None
    return result.stdout.strip() if result.returncode == 0 else None


def hardware(device: str | None) -> str:
    """The processor's or the GPU's own name."""
    if device in (None, "cpu"):
        return str(cpu())
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        found = subprocess.run(query, capture_output=True, text=True).stdout.splitlines()
    except FileNotFoundError:
        found = []
    return f"{len(found)} x {found[0]}" if found else str(device)
