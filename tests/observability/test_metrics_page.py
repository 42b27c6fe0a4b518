"""The metrics page of a running service: its text, its probes, and what stops it at start."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from serving.errors import StartError
from serving.metrics import INSTRUMENTS, READY, Counter, Gauge, Histogram, Instrument
from serving.metrics_page import MetricsPage


@pytest.fixture
def page() -> Iterator[MetricsPage]:
    made = MetricsPage("127.0.0.1", 0)
    yield made
    made.close()


@pytest.fixture
def instruments() -> Iterator[dict[str, Instrument]]:
    """Without what this test adds."""
    before = dict(INSTRUMENTS)
    yield INSTRUMENTS
    for name in set(INSTRUMENTS) - set(before):
        del INSTRUMENTS[name]


def get(page: MetricsPage, path: str) -> tuple[int, str]:
    try:
        with urlopen(f"http://127.0.0.1:{page.port}{path}", timeout=30) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


def samples(page: MetricsPage) -> dict[str, float]:
    """Every sample, its labels written behind its name, by prometheus_client's own parser."""
    families = text_string_to_metric_families(get(page, "/metrics")[1])
    return {
        sample.name + "".join(f" {name}={value}" for name, value in sample.labels.items()): (
            sample.value
        )
        for family in families
        for sample in family.samples
    }


def test_each_kind_is_shown_as_prometheus_reads_it(
    page: MetricsPage, instruments: dict[str, Instrument]
) -> None:
    """Prevents a page that Prometheus drops whole, or buckets that are not cumulative."""
    counter = Counter("test_seen_total", "seen", "kind")
    counter.inc("a")
    counter.inc("a", by=2)
    counter.inc('b "quoted"\n')
    Gauge("test_now", "now").watch(lambda: 0.25)
    histogram = Histogram("test_took_seconds", "took", (0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 7.0):
        histogram.observe(value)
    found = samples(page)
    assert found["test_seen_total kind=a"] == 3
    assert found['test_seen_total kind=b "quoted"\n'] == 1
    assert found["test_now"] == 0.25
    assert [found[f"test_took_seconds_bucket le={le}"] for le in ("0.1", "1", "+Inf")] == [2, 3, 4]
    assert (found["test_took_seconds_count"], found["test_took_seconds_sum"]) == (4, 7.65)
    assert found["process_resident_memory_bytes"] > 0


def test_probes(page: MetricsPage) -> None:
    """Prevents traffic to a service that loads or drains, and restarts of one that only drains."""
    READY.set(False)
    assert (get(page, "/liveness")[0], get(page, "/readiness")[0]) == (200, 503)
    READY.set(True)
    assert (get(page, "/readiness")[0], samples(page)["domino_ready"]) == (200, 1)
    READY.set(False)
    assert get(page, "/etc/passwd")[0] == 404


def test_a_taken_port_is_told() -> None:
    """Prevents a service that runs on, unwatched."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(StartError, match=f"cannot listen on 127.0.0.1:{port}.*--metrics-port"):
            MetricsPage("127.0.0.1", port)


@pytest.mark.parametrize("module", ["verify_service", "draft_service", "router"])
def test_each_service_ends_where_its_metrics_port_is_taken(module: str) -> None:
    """Prevents a traceback, or a model loaded for nothing."""
    needed = {"verify_service": [], "draft_service": ["--draft", "d"], "router": ["--verify=v:1"]}
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", module, "--target", "t", *needed[module]]
        command += ["--metrics-port", port]
        result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}" in result.stderr
    assert "choose another --metrics-port" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_ipv6() -> None:
    """Prevents a page that only the older of a cluster's two protocols reaches."""
    page = MetricsPage("::1", 0)
    try:
        with urlopen(f"http://[::1]:{page.port}/liveness", timeout=30) as answer:
            assert answer.status == 200
    finally:
        page.close()


WITHOUT_LIBRARY = """
import sys
sys.modules["prometheus_client"] = None  # as where it is not installed
import importlib.util
importlib.util.find_spec = lambda name: None
import router.server, verify_service.sequence, verify_service.metrics, draft_service.metrics
from serving.errors import StartError
from serving.metrics_page import MetricsPage
assert MetricsPage.open("127.0.0.1", 0) is None
try:
    MetricsPage.open("127.0.0.1", 1)
except StartError as error:
    sys.exit(f"refused: {error}")
"""


def test_only_the_page_needs_the_library() -> None:
    """Prevents services that do not start on machines without prometheus_client."""
    command = [sys.executable, "-c", WITHOUT_LIBRARY]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.stderr.startswith("refused: --metrics-port needs prometheus_client"), (
        result.stderr
    )
