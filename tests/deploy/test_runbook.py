"""The runbook's figures come from the code, its alerts from the rules, its paths from the tree."""

import json
import re
from pathlib import Path

import pytest
import torch
import yaml

from domino_kernels.paged_kv import PagedKV
from tests.deploy.manifests import DEPLOY, of_kind

RUNBOOK = (DEPLOY / "README.md").read_text()
RULES = yaml.safe_load((DEPLOY / "observability" / "alerts.yaml").read_text())
ALERTS = [rule for group in RULES["groups"] for rule in group["rules"]]
MODELS = DEPLOY.parent / "models"
KIB, GIB = 2**10, 2**30


def kv_bytes(layers: int, heads: int, head_dim: int, dtype: torch.dtype) -> int:
    """What the engines allocate for a position."""
    kv = PagedKV(
        layers=layers,
        pages=1,
        kv_heads=heads,
        page_size=16,
        head_dim=head_dim,
        dtype=dtype,
        device=torch.device("cpu"),
    )
    return (kv.k.nbytes + kv.v.nbytes) // 16


def test_bytes_of_positions() -> None:
    """Prevents a table of sizes that the engines have outgrown."""
    bf16, f32 = torch.bfloat16, torch.float32
    qwen, row = kv_bytes(36, 8, 128, bf16), 4096 * 2
    assert f"| verify, a position | {(qwen + row) / KIB:.0f} KiB (rows: {row / KIB:.0f} KiB) |" in (
        RUNBOOK
    )
    smol, small_row = kv_bytes(30, 3, 64, f32), 576 * 4
    assert f"{(smol + small_row) / KIB} KiB (rows: {small_row / KIB} KiB)" in RUNBOOK
    own = json.loads((MODELS / "smollm2-135m-domino-b16" / "config.json").read_text())
    sizes = own["num_hidden_layers"], own["num_key_value_heads"], own["head_dim"]
    drafts = kv_bytes(5, 8, 128, bf16), kv_bytes(*sizes, f32)
    assert f"| draft, a position | {drafts[0] / KIB:.0f} KiB" in RUNBOOK
    assert f"| {drafts[1] / KIB} KiB ({sizes[0]} layers, {sizes[1]} x {sizes[2]})" in RUNBOOK
    positions = 32 * 2048
    assert f"{positions * (qwen + row) / GIB} GiB / {positions * drafts[0] / GIB} GiB" in RUNBOOK
    for gigabytes, free_gib in ((24, 22.5), (80, 79.2), (141, 139.8)):
        left = (free_gib - 15.26 - 3.5) * GIB  # weights; slack, two steps, a prompt
        fit = round(left / (qwen + row), -3)
        assert re.search(rf"\| {gigabytes} GB[^|]*\| {fit:,.0f} \|", RUNBOOK), (gigabytes, fit)


def test_every_alert_has_its_answer() -> None:
    """Prevents an alert at night that nobody wrote about, and answers to alerts that are gone."""
    rows = re.findall(r"^\| `(Domino\w+)` \|", RUNBOOK, re.MULTILINE)
    assert rows == [rule["alert"] for rule in ALERTS]


def test_jobs_are_those_that_the_alerts_ask_for() -> None:
    """Prevents alerts that never fire because scraped pods have other names."""
    (monitor,) = of_kind("single-node-gpu", "PodMonitor")
    (relabeling,) = monitor["spec"]["podMetricsEndpoints"][0]["relabelings"]
    assert relabeling["targetLabel"] == "job"
    jobs = {relabeling["replacement"].replace("$1", name) for name in ("router", "draft", "verify")}
    patterns = {p for rule in ALERTS for p in re.findall(r'job=~"([^"]*)"', rule["expr"])}
    assert patterns
    for pattern in patterns:
        assert any(re.fullmatch(pattern, job) for job in jobs), pattern


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`([\w./-]+\.(?:py|yaml))`", RUNBOOK))))
def test_files_it_names_exist(path: str) -> None:
    """Prevents a runbook that sends its reader to nothing."""
    roots = (DEPLOY, DEPLOY / "kubernetes", DEPLOY.parent)
    assert any((root / Path(path)).is_file() for root in roots)
