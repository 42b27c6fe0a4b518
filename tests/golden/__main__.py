"""`python -m tests.golden DIR...`: runs fixture folders through the project's code.

Prints one JSON line per compared tensor or loaded config and `compared N of M required`; exit code
1 when a tensor differs or is missing, or a config has the wrong verdict.
"""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from tests.golden.compare import compare, compare_values, rules_for
from tests.golden.fixture import Fixture
from tests.golden.run_forward import run_draft, run_rollout, run_target
from tests.golden.run_generate import run_generate
from tests.golden.run_loader import MANIFEST, run_loader
from tests.golden.run_sampling import run_sampling
from tests.golden.run_tp import run_tp
from tests.golden.run_training import run_training, run_training_json

RUNNERS: dict[str, Callable[[Fixture], dict[str, Tensor]]] = {
    "target": run_target,
    "draft": run_draft,
    "rollout": run_rollout,
    "generate": run_generate,
    "sampling": run_sampling,
    "training": run_training,
    "tp_rollout": run_tp,
}
LOADER = "loader"  # its fixture has no tensors, but verdicts
NEEDS = (*RUNNERS, LOADER)


def run_folder(folder: Path, needs: set[str]) -> list[dict[str, Any]] | None:
    """Verdicts of one folder's required tensors or configs; None when it is not asked for."""
    rules = rules_for(folder.resolve())
    if rules is None or rules.needs not in needs:
        return None
    if rules.needs == LOADER:
        return [{"fixture": folder.name} | verdict for verdict in run_loader(folder.resolve())]
    fixture = Fixture(folder.resolve())
    ours, keep = RUNNERS[rules.needs](fixture), fixture.inputs.get("keep")
    verdicts = [
        compare(name, ours.get(name), expected, rules, keep)
        for name, expected in sorted(fixture.expected.items())
        if rules.requires(name)
    ]
    if rules.json:
        values = run_training_json(fixture).items()
        verdicts += [compare_values(file, *pair, rules) for file, pair in values]
    return [{"fixture": folder.name} | verdict for verdict in verdicts]


def fixture_folders(folders: list[Path]) -> list[Path]:
    """The given folders that hold recordings, and such folders right below them."""
    files = ("expected.safetensors", MANIFEST)
    found = {p.parent for folder in folders for file in files for p in folder.rglob(file)}
    return sorted(found)


def main(argv: list[str] | None = None) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR")
    parser.add_argument(
        "--needs",
        default=",".join(NEEDS),
        help="capabilities to compare, comma-separated (default: %(default)s)",
    )
    options = parser.parse_args(argv)
    needs = set(options.needs.split(","))
    if unknown := needs - set(NEEDS):
        parser.error(f"--needs {', '.join(sorted(unknown))}: known are {', '.join(NEEDS)}")
    folders = fixture_folders(options.folders)
    if not folders:
        parser.error(f"no recordings in {', '.join(map(str, options.folders))}: try tests/golden")
    verdicts: list[dict[str, Any]] = []
    for folder in folders:
        verdicts += run_folder(folder, needs) or []
    for verdict in verdicts:
        print(json.dumps(verdict))
    compared = sum("why" not in v for v in verdicts)
    print(f"compared {compared} of {len(verdicts)} required")
    return 0 if verdicts and all(v["ok"] for v in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
