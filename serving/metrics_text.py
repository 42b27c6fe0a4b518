"""The process's instruments in, Prometheus text out; by the library prometheus_client."""

from collections.abc import Iterator
from itertools import accumulate

from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from serving.metrics import INSTRUMENTS, Counter, Histogram, Instrument, Watched


def metrics_text() -> bytes:
    """Every instrument of this process, with what the library says of process and interpreter."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    registry.register(_Instruments())
    return generate_latest(registry)


class _Instruments(Collector):
    def collect(self) -> Iterator[Metric]:
        for instrument in INSTRUMENTS.values():
            yield _family(instrument)


def _family(instrument: Instrument) -> Metric:
    if isinstance(instrument, Histogram):
        return _histogram(instrument)
    assert isinstance(instrument, Counter | Watched)
    kind = CounterMetricFamily if instrument.kind == "counter" else GaugeMetricFamily
    family = kind(instrument.name, instrument.help, labels=instrument.labels)
    for labels, value in instrument.read().items():
        family.add_metric(labels, value)
    return family


def _histogram(instrument: Histogram) -> HistogramMetricFamily:
    found = instrument.spread()
    bounds = [*(f"{bound:g}" for bound in found.bounds), "+Inf"]
    buckets = list(zip(bounds, accumulate(found.counts), strict=True))
    family = HistogramMetricFamily(instrument.name, instrument.help)
    family.add_metric((), buckets=buckets, sum_value=found.sum)
    return family
