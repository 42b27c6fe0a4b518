"""Dashboard and alert rules name only metrics, labels and values that exist, and every alert has an
answer in the docs.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from serving.contract import MODES
from serving.errors import error_classes
from serving.metrics import Histogram
from tests.observability.every_instrument import every_instrument
from verify_service.metrics import PHASES

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "observability"
# What Prometheus and prometheus_client add.
FOREIGN = {"up", "process_resident_memory_bytes"}
FOREIGN_LABELS = {"job", "instance", "le"}
LABEL_VALUES: dict[str, set[str]] = {
    "reason": set(error_classes()),
    "phase": {*PHASES, "queue", "append", "backbone", "rollout"},
    "mode": set(MODES),
}
NAME = re.compile(r"(?<![\w$\"{])([a-z_]\w*)(?=\{|\[| |\)|$)")
WORDS = {"sum", "by", "and", "on", "ignoring", "group_left", "rate", "deriv", "increase"}
MATCHER = re.compile(r'(\w+)\s*(=~|=)\s*"([^"]*)"')
GROUPING = re.compile(r"(?:by|on|ignoring|group_left) \(([^)]*)\)")


def alerts() -> list[dict[str, Any]]:
    found = yaml.safe_load((FOLDER / "alerts.yaml").read_text())
    return [rule for group in found["groups"] for rule in group["rules"]]


def expressions() -> Iterator[tuple[str, str]]:
    """Where it stands, and the PromQL."""
    for panel in json.loads((FOLDER / "dashboard.json").read_text())["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]
    for rule in alerts():
        yield rule["alert"], rule["expr"]


def names(expression: str) -> set[str]:
    """Metrics of an expression, a histogram's series under its own name."""
    bare = GROUPING.sub("", expression)
    bare = re.sub(r"\{[^}]*\}", "{}", bare)
    found = set(NAME.findall(bare)) - WORDS
    histograms = {name for name, i in every_instrument().items() if isinstance(i, Histogram)}
    series = {f"{h}_{part}": h for h in histograms for part in ("bucket", "sum", "count")}
    return {series.get(name, name) for name in found}


@pytest.mark.parametrize(("place", "expression"), list(expressions()))
def test_names_exist(place: str, expression: str) -> None:
    """Prevents a panel that stays empty, or an alert that never fires, after a rename."""
    known = every_instrument()
    used = names(expression)
    assert used, f"no metric is recognised in {place}"
    assert used <= known.keys() | FOREIGN
    labels = {label for name in used & known.keys() for label in known[name].labels}
    for label, _, values in MATCHER.findall(expression):
        assert label in labels | FOREIGN_LABELS, label
        if label in LABEL_VALUES and label in labels:
            assert set(values.split("|")) <= LABEL_VALUES[label]
    for group in GROUPING.findall(expression):
        grouped = {label.strip() for label in group.split(",")} - {""}
        assert grouped <= labels | FOREIGN_LABELS


def test_every_metric_is_on_the_dashboard() -> None:
    """Prevents a metric that nobody looks at."""
    shown = {name for _, expression in expressions() for name in names(expression)}
    assert every_instrument().keys() <= shown


def test_every_alert_is_named_in_the_docs() -> None:
    """Prevents a page at night that nobody knows an answer to."""
    rows = re.findall(r"^\| `(Domino\w+)` \|", (ROOT / "docs/observability.md").read_text(), re.M)
    assert rows == [rule["alert"] for rule in alerts()]
    for rule in alerts():
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["annotations"]["summary"]


def test_panels_have_places_of_their_own() -> None:
    """Prevents panels that cover one another."""
    dashboard = json.loads((FOLDER / "dashboard.json").read_text())
    taken: set[tuple[int, int]] = set()
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids))
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
