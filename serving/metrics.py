"""What a process counts and times: plain Python where it happens, read when somebody asks.

Services declare their instruments in their own metrics.py; serving.metrics_page shows them all.
docs/observability.md is the list of names.
"""

import threading
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Literal

Kind = Literal["counter", "gauge", "histogram"]
Labels = tuple[str, ...]
Reading = Mapping[Labels, float]

# Upper bounds in seconds, vLLM's where it has such a histogram.
STEP_S: Final = (.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1.0, 2.5, 5.0, 10.0)  # fmt: skip
TOKEN_S: Final = (
    .001, .0025, .005, .01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip
FIRST_TOKEN_S: Final = (
    .001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
    80.0, 160.0,
)  # fmt: skip
REQUEST_S: Final = (
    .1, .3, .5, .8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0,
)  # fmt: skip


class Instrument:
    """A named quantity; each name exists once in a process."""

    kind: ClassVar[Kind]

    def __init__(self, name: str, help: str, *labels: str) -> None:
        assert name not in INSTRUMENTS, f"two metrics are called {name}"
        self.name, self.help, self.labels = name, help, labels
        INSTRUMENTS[name] = self


INSTRUMENTS: Final[dict[str, Instrument]] = {}


class Counter(Instrument):
    """Only grows; safe from any thread."""

    kind = "counter"

    def __init__(self, name: str, help: str, *labels: str) -> None:
        super().__init__(name, help, *labels)
        self._lock = threading.Lock()
        self._values: dict[Labels, float] = {} if labels else {(): 0.0}

    def inc(self, *labels: str, by: float = 1.0) -> None:
        """Adds to the value of these labels."""
        with self._lock:
            self._values[labels] = self._values.get(labels, 0.0) + by

    def show(self, *values: str) -> None:
        """Shows 0 for these values of its only label before anything is counted."""
        for value in values:
            self.inc(value, by=0)

    def read(self) -> Reading:
        return dict(self._values)


class Watched(Instrument):
    """A quantity that somebody else keeps; nothing is shown before `source` is set."""

    def __init__(self, name: str, help: str, *labels: str) -> None:
        super().__init__(name, help, *labels)
        self.source: Callable[[], Reading] = dict

    def watch(self, source: Callable[[], float]) -> None:
        """Shows one value without labels."""
        self.source = lambda: {(): source()}

    def set(self, value: float) -> None:
        """Shows this value from now on."""
        self.watch(lambda: value)

    def read(self) -> Reading:
        return self.source()


class Gauge(Watched):
    """A moment's value."""

    kind = "gauge"


class Total(Watched):
    """A count that somebody else keeps."""

    kind = "counter"


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """counts[i] values lie above bounds[i - 1] and at most at bounds[i]; the last is the rest."""

    bounds: Sequence[float]
    counts: Sequence[int]
    sum: float


class Histogram(Instrument):
    """How values are spread over fixed buckets; safe from any thread."""

    kind = "histogram"

    def __init__(self, name: str, help: str, bounds: Sequence[float]) -> None:
        super().__init__(name, help)
        self._bounds, self._lock = tuple(bounds), threading.Lock()
        self._counts, self._sum = [0] * (len(bounds) + 1), 0.0

    def observe(self, value: float) -> None:
        """Counts one value."""
        with self._lock:
            self._counts[bisect_left(self._bounds, value)] += 1
            self._sum += value

    def spread(self) -> Distribution:
        with self._lock:
            counts = tuple(self._counts)
            return Distribution(bounds=self._bounds, counts=counts, sum=self._sum)


# Of every service.
READY = Gauge("domino_ready", "1 from ready to drain, otherwise 0")
REQUESTS_FAILED = Counter(
    "domino_requests_failed_total",
    "Calls that ended with an error, refusals included, by ErrorInfo reason",
    "reason",
)
# Of those that compute on a GPU.
GPU_MEMORY = Gauge(
    "domino_gpu_memory_bytes", "GPU memory that tensors take, and that the process keeps", "kind"
)
IPC_HANDLES = Gauge(
    "domino_cuda_ipc_handles",
    "GPU memory and events of other processes open here, and own memory made for others",
    "kind",
)
