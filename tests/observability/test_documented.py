"""docs/observability.md names every metric, as the code declares it, and no other."""

import re
from pathlib import Path

from serving.metrics import Instrument
from tests.observability.every_instrument import every_instrument

PAGE = Path(__file__).parents[2] / "docs" / "observability.md"
ROW = re.compile(r"^\| `(domino_\w+)` \| (\w+) \| (.*?) \| (.+) \|$", re.MULTILINE)


def row(instrument: Instrument) -> tuple[str, str, str]:
    labels = ", ".join(f"`{label}`" for label in instrument.labels)
    return instrument.kind, labels, instrument.help


def test_the_table_is_the_code() -> None:
    """Prevents dashboards built on a page that is out of date."""
    documented = {name: rest for name, *rest in ROW.findall(PAGE.read_text())}
    expected = {name: list(row(found)) for name, found in every_instrument().items()}
    assert documented == expected


def test_names_follow_prometheus_conventions() -> None:
    """Prevents counters without _total and times that are not in seconds."""
    for name, instrument in every_instrument().items():
        assert name.endswith("_total") == (instrument.kind == "counter"), name
        assert not re.search(r"_(ms|ns|milliseconds)(_|$)", name)
