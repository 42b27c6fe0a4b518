"""The README's plot: a stand-alone picture of a kept result."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path

from benchmarks.plot_serve import plot

RESULT = (
    Path(__file__).parent.parent.parent / "benchmarks" / "serve_cpu_xeon-2.8ghz-2c_2026-11-30b.json"
)


def test_a_kept_result_becomes_a_picture_of_its_own() -> None:
    """Prevents a plot that only shows inside a page, or that counts cells without figures."""
    result = json.loads(RESULT.read_text())
    root = ET.fromstring(plot(result))
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    titles = [title.text or "" for title in root.iter() if title.tag.endswith("title")]
    shown = {title.split(":")[0] for title in titles}
    assert shown == {"AR", "DFlash b4", "Domino b8", "Domino auto"}
    for cell in result["cells"]:
        cell["incomplete"] = "died" if cell["arm"] == "ar" else None
    assert ">AR:" not in plot(result)
