"""What `domino-serve` starts on one machine, and the command line of each service.

domino_cli.stack starts it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from serving.process import check_port
from serving.unused_port import unused_port

CONFIDENCE_THRESHOLD = 0.08  # of drafts on a CPU; benchmarks/cpu_model_2026-11-30.md
IN_PROCESS = "in-process"  # verify and draft in one process; other planes are the services' own


@dataclass(frozen=True, kw_only=True, slots=True)
class StackConfig:
    """What to start. None leaves a setting to the services' own default.

    draft: None runs the target alone (plain decoding, two processes).
    draft_device: the draft's, where it is another one.
    tp: processes that hold the target together, on a GPU each; the first is `verify`.
    draft_tp: the same of the draft; the first is `draft`.
    data_plane: how rows go from verify to draft; IN_PROCESS makes one process of the two.
    port: the router's, 0 for a free one; the other two take free ports, or Unix sockets in the
        folder `sockets`. Whoever is started again has the same.
    metrics_port: the router's, verify's and draft's are the next two.
    """

    target: Path
    draft: Path | None = None
    mode: str | None = None
    device: str | None = None
    draft_device: str | None = None
    dtype: str | None = None
    width: int | None = None
    width_policy: str | None = None
    threads: int | None = None
    max_sequences: int | None = None
    domino_candidates: int | str | None = None
    confidence_threshold: float | None = None
    kv_tokens: int | None = None
    timeline: Path | None = None
    synthetic_acceptance: str | None = None
    use_generation_config: bool | None = None
    deterministic: bool | None = None
    tp: int = 1
    draft_tp: int = 1
    data_plane: str | None = None
    sockets: Path | None = None
    host: str = "127.0.0.1"
    port: int = 0
    metrics_port: int | None = None
    ready_timeout_s: float = 900.0
    show_logs: bool = True

    def check_ports(self) -> None:
        """Raises StartError for a port that is taken, before models load."""
        check_port(self.host, self.port)
        pages = 3 if self.draft and not self.in_process else 2
        for port in filter(None, map(self._metrics_port, range(pages))):
            check_port(self.host, port, "choose another --metrics-port")

    def metrics_flags(self, place: int) -> list[str]:
        """place: 0 the router, 1 verify, 2 draft."""
        return flags({"metrics_port": self._metrics_port(place)})

    def _metrics_port(self, place: int) -> int | None:
        return self.metrics_port + place if self.metrics_port else None

    @property
    def in_process(self) -> bool:
        """Whether verify and draft are one process."""
        return self.data_plane == IN_PROCESS

    def model_flags(self, name: str, device: str | None) -> list[str]:
        """What verify and draft have in common; `name` is one of them."""
        values = {
            "device": device,
            "dtype": self.dtype,
            "threads": self.threads,
            "kv_tokens": self.kv_tokens,
            "data_plane": None if self.in_process else self.data_plane,
            "listen": f"unix:{self.sockets.absolute()}/{name}.sock" if self.sockets else None,
        }
        models = {"target": self.target, "draft": self.draft}
        return flags({**models, **values, "host": self.host, "port": unused_port(self.host)})

    def verify_flags(self) -> list[str]:
        return [
            *self.model_flags("verify", self.device),
            *self.metrics_flags(1),
            *flags(
                {
                    "width": self.width,
                    "width_policy": self.width_policy,
                    "max_sequences": self.max_sequences,
                    "deterministic": self.deterministic,
                    "timeline": self.timeline,
                    "benchmark": True if self.synthetic_acceptance else None,
                    "benchmark_synthetic_acceptance": self.synthetic_acceptance,
                }
            ),
        ]

    def draft_flags(self) -> list[str]:
        model = self.model_flags("draft", self.draft_device or self.device)
        return [*model, *self.metrics_flags(2), *self.drafting_flags()]

    def one_process_flags(self) -> list[str]:
        """Of verify and draft together."""
        own = flags({"draft_kv_tokens": self.kv_tokens})
        return [*self.verify_flags(), *self.drafting_flags(), *own]

    def drafting_flags(self) -> list[str]:
        """The draft's alone."""
        # Every running request may want a seat; the service's own default is 64.
        seats = self.max_sequences if (self.max_sequences or 0) > 64 else None
        return flags(
            {
                "domino_candidates": self.domino_candidates,
                "confidence_threshold": self.confidence_threshold,
                "max_sessions": seats,
            }
        )

    def router_flags(self, addresses: dict[str, str]) -> list[str]:
        """Flags of the router, given the other services' addresses by name."""
        own = {
            "target": self.target,
            **addresses,
            "mode": self.mode,
            "use_generation_config": self.use_generation_config,
            "host": self.host,
            "port": self.port or unused_port(self.host),
        }
        return [*flags(own), *self.metrics_flags(0)]


def flags(values: Mapping[str, object]) -> list[str]:
    """{"max_sequences": 8, "mode": None, "fast": True} -> ["--max-sequences", "8", "--fast"]."""
    found: list[str] = []
    for name, value in values.items():
        if value is not None:
            found += [flag(name)] if value is True else [flag(name), str(value)]
    return found


def flag(name: str) -> str:
    """An option's name on the command line."""
    return f"--{name.replace('_', '-')}"
