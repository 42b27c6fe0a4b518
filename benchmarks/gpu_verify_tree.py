"""The commit a benchmark ran at, on a machine that has the files but no git.

`python -m benchmarks.gpu_verify_tree FILE` writes the commit and its files' hashes where git is;
with `--tree FILE` a run compares them with every file of the project that it has imported.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.provenance import ROOT, blob, git, tree


def add_argument(parser: argparse.ArgumentParser) -> None:
    """--tree FILE."""
    parser.add_argument("--tree", type=Path, help="written by benchmarks.gpu_verify_tree")


def imported_tree(file: Path | None) -> dict[str, Any]:
    """{"commit", "clean"}: clean when all that was imported is the commit's. No file: git tells."""
    if file is None:
        return tree()
    known = json.loads(file.read_text())
    used = [
        Path(path) for m in list(sys.modules.values()) if (path := getattr(m, "__file__", None))
    ]
    own = [path for path in used if path.is_relative_to(ROOT) and ".venv" not in path.parts]
    changed = [
        path.relative_to(ROOT).as_posix()
        for path in own
        if known["blobs"].get(path.relative_to(ROOT).as_posix()) != blob(path)
    ]
    return {"commit": known["commit"], "clean": not changed, "changed": changed}


def main() -> None:
    """Writes the commit and its files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    options = parser.parse_args()
    listed = git(ROOT, "ls-tree", "-r", "HEAD") or ""
    blobs = {path: about.split()[2] for about, path in (x.split("\t") for x in listed.split("\n"))}
    commit = git(ROOT, "rev-parse", "HEAD")
    options.file.write_text(json.dumps({"commit": commit, "blobs": blobs}))


if __name__ == "__main__":
    main()
