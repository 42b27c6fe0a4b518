"""Runs of several heads come together as means over seeds, and only those of equal steps count."""

import json
from pathlib import Path
from typing import Any

from benchmarks.draft_arms_report import main


def line(arm: str, seed: int, equal: str, length: float) -> dict[str, Any]:
    """A run whose workloads are all alike; ShareGPT, which is not in the macro, is not."""
    workloads = {w: length for w in ("gsm8k", "humaneval", "mt-bench", "math500")}
    acceptance = {
        w: {"acceptance_length": n, "accepted_shares": [0.5]}
        for w, n in (workloads | {"sharegpt": 99.0}).items()
    }
    found: dict[str, Any] = {"arm": arm, "seed": seed, "equal": equal, "steps": 10, "changes": []}
    found |= {"ms_a_step": 20.0, "parameters": 7, "acceptance": acceptance}
    return found


def test_ratios_are_of_means_at_equal_steps(tmp_path: Path) -> None:
    """A ratio of the best seeds, or one with the longer run of equal time in it, flatters."""
    runs = [("dflash", 0, "steps", 2.0), ("dflash", 1, "steps", 3.0), ("dflash", 0, "time", 9.0)]
    runs += [("domino", 1, "steps", 4.0), ("domino", 0, "steps", 2.0), ("dflash", 2, "steps", 2.5)]
    runs += [("domino", 2, "steps", 3.0), *(("dspark", i, "steps", 1.5) for i in range(3))]
    (tmp_path / "arms.jsonl").write_text("".join(json.dumps(line(*run)) + "\n" for run in runs))
    about: dict[str, Any] = {
        "date": "2026-11-30T00:00:00+00:00",
        "hardware": "x",
        "versions": {},
        "command": "c",
    }
    about |= {"documents": 1, "rows": 1, "tokens_a_step": 100}
    other = tmp_path / "other"
    other.mkdir()
    wide = [("domino-wide", 0, "steps", 9.0)]  # of fewer seeds: not the figure
    (other / "arms.jsonl").write_text("".join(json.dumps(line(*run)) + "\n" for run in wide))
    for folder, clean in ((tmp_path, True), (other, False)):
        tree = {"commit": "a", "clean": clean, "changed": [] if clean else ["f.py"]}
        (folder / "about.json").write_text(json.dumps(about | {"tree": tree}))
    times = {"draft_c1": 1.0, "verify_c1": 3.0, "draft_c8": 1.0, "verify_c8": 4.0}
    (tmp_path / "steps.json").write_text(json.dumps({"domino": times}))
    more = ["--steps", str(tmp_path / "steps.json"), "--json", str(tmp_path / "all.json")]
    assert main([str(tmp_path), str(other), *more]) == 0
    result = json.loads((tmp_path / "all.json").read_text())
    values = {figure["id"]: figure["value"] for figure in result["figures"]}
    assert values["embedded_domino_over_dflash_acceptance"] == 3.0 / 2.5
    assert values["embedded_dspark_acceptance_macro_b16"] == 1.5
    assert values["train_tokens_per_s_embedded"] == 5000.0
    assert result["tree"] == {"commit": "a", "clean": False, "changed": ["f.py"]}
    domino = next(row for row in result["arms"] if row["arm"] == "domino")
    assert domino["macro_by_seed"] == [2.0, 4.0, 3.0] and domino["tokens_a_ms_c1"] == 3.0 / 4.0
