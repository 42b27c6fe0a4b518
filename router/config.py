"""Options of the router process."""

from dataclasses import dataclass
from pathlib import Path

from router.callers import Callers
from router.discovery import discovery
from serving.contract import ModeName
from serving.options import OptionError, check_seconds, field
from serving.peers import Gate
from serving.service_options import ServiceOptions
from serving.tls import is_loopback

_DURATIONS = (
    "seat_timeout_s",
    "failover_s",
    "startup_timeout_s",
    "grace_s",
    "notice_s",
    "clock_skew_s",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class RouterConfig(ServiceOptions):
    target: Path = field(help="target's folder; its tokenizer.json and tokenizer_config.json")
    verify: str = field(
        help="where verify services are: host:port or unix:/path, several with commas between, "
        "dns:NAME:PORT, or k8s:[NAMESPACE/]SERVICE:PORT"
    )
    draft: str | None = field(
        None, help="where draft services are, in the same forms; without any, plain"
    )
    mode: ModeName | None = field(
        None, help="mode of requests that name none (default: the strongest one available)"
    )
    max_requests: int = field(256, help="running requests; more are refused with CAPACITY")
    max_prompt_bytes: int = field(1 << 20, help="bytes of UTF-8 in a text or chat prompt")
    default_max_tokens: int = field(256, help="max_tokens of requests that name none")
    use_generation_config: bool = field(
        False,
        help="a request's unset sampling fields are those of the target's generation_config.json; "
        "otherwise requests are greedy",
    )
    seat_timeout_s: float = field(0.5, help="wait for a draft seat; then the request runs plain")
    failover_s: float = field(
        30.0, help="time a stream that has begun waits for a verify service when all are away"
    )
    startup_timeout_s: float = field(300.0, help="wait for the verify service at start")
    grace_s: float = field(30.0, help="time running requests get after the first signal")
    notice_s: float = field(
        0.0,
        help="time before that in which new requests are still taken: load balancers see that it "
        "is not ready any more",
    )

    tls_client_ca: Path | None = field(
        None, help="PEM file of the CA of clients' certificates; clients without one are refused"
    )
    callers: Path | None = field(
        None, help="TOML file of who may call: tokens and certificates, limits (docs/security.md)"
    )
    clock_skew_s: float = field(60.0, help="how far other clocks may be off, for callers' dates")

    def __post_init__(self) -> None:
        ServiceOptions.__post_init__(self)
        for name in ("max_requests", "max_prompt_bytes", "default_max_tokens"):
            if getattr(self, name) < 1:
                raise OptionError(name, getattr(self, name), "must be at least 1")
        check_seconds(self, *_DURATIONS, or_zero=True)
        discovery("verify", self.verify)
        if self.draft is not None:
            discovery("draft", self.draft)
        if self.draft is None and self.mode not in (None, "ar"):
            raise OptionError("mode", self.mode, "needs a draft service: give --draft")
        self._check_front_door()

    def _check_front_door(self) -> None:
        if self.tls_client_ca and not self.tls_cert:
            raise OptionError("tls_client_ca", str(self.tls_client_ca), "needs --tls-cert")
        is_open = not self.listen and not is_loopback(self.host)
        if self.callers and not self.tls_cert and is_open:
            remedy = "would let tokens travel readable: give --tls-cert, or --host 127.0.0.1"
            raise OptionError("callers", str(self.callers), remedy)

    @property
    def client_ca(self) -> Path | None:
        return self.tls_client_ca

    def gates(self) -> list[Gate]:
        known = [Callers(self.callers, self.clock_skew_s)] if self.callers else []
        return [*ServiceOptions.gates(self), *known]
