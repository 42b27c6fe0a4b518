"""Options that every service has; each service's own config dataclass inherits them."""

from dataclasses import dataclass
from typing import Final

from serving.options import OptionError, field


@dataclass(frozen=True, kw_only=True, slots=True)
class ServiceOptions:
    """A subclass's __post_init__ begins with `ServiceOptions.__post_init__(self)`."""

    metrics_port: int = field(
        0, help="HTTP port of /metrics, /liveness and /readiness on --host; 0 is none"
    )

    def __post_init__(self) -> None:
        if not 0 <= self.metrics_port <= 65535:
            raise OptionError("metrics_port", self.metrics_port, "must be in 0..65535")


DEFAULTS: Final = ServiceOptions()
