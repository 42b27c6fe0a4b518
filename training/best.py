"""The best draft that a run has evaluated: RUN/best, an export that is served as it is.

Later steps may be worse, and rotation removes checkpoints; this folder only gives way to a better
one. best.json says which step it is of.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from training.evaluate import MACRO

BEST, ABOUT = "best", "best.json"


def best_so_far(run: Path) -> float:
    """Its acceptance_macro; 0 where none was evaluated yet."""
    about = run / BEST / ABOUT
    return float(json.loads(about.read_text())[MACRO]) if about.is_file() else 0.0


def keep_best(run: Path, draft: Path, about: Mapping[str, Any]) -> None:
    """Copies the export `draft` into place of the one before; there is always a whole one."""
    partial, before = run / f".{BEST}.partial", run / f".{BEST}.before"
    for left in (partial, before):
        shutil.rmtree(left, ignore_errors=True)
    shutil.copytree(draft, partial)
    (partial / ABOUT).write_text(json.dumps(about, indent=1) + "\n")
    if (run / BEST).exists():
        (run / BEST).rename(before)
    partial.rename(run / BEST)
    shutil.rmtree(before, ignore_errors=True)
