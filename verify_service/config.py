"""Options of the verify service."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from serving.options import OptionError, check_seconds, field
from serving.service_options import ServiceOptions
from serving.transport.plane import check_name


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyConfig(ServiceOptions):
    """Command line and config file of `python -m verify_service`."""

    target: Path = field(help="folder of the target checkpoint")
    draft: Path | None = field(
        None,
        help="folder of the draft checkpoint, for its projection; plain decoding without",
    )
    target_sha256: str | None = field(
        None, help="hash the target must have, as `domino-serve inspect` shows it"
    )
    draft_sha256: str | None = field(None, help="hash the draft must have")
    device: str = field("cpu", help="torch device, such as cpu or cuda:0")
    dtype: Literal["float32", "bfloat16", "float16"] = field("float32", help="computation dtype")
    data_plane: str = field(
        "auto",
        help="how rows go to a draft service: auto takes shared memory (shm) or GPU memory "
        "(cuda-ipc) where both services are on one host, else messages (inline); one of the three "
        "names takes that one, or inline where it cannot be had; nccl sends them from GPU to GPU, "
        "also to another host, unencrypted",
    )
    threads: int = field(0, help="CPU threads; 0 leaves torch's default")
    width: int = field(
        0,
        help="positions verified a step, the current token included; 0 is the draft's block size",
    )
    width_policy: Literal["fixed", "auto"] | None = field(
        None,
        help="fixed verifies --width positions; auto takes from step times and acceptance what is "
        "fastest, plain steps included, up to --width (default: auto without --width, else fixed)",
    )
    max_sequences: int = field(32, help="sequences that run at once")
    max_waiting: int = field(64, help="requests that wait at most; more are refused")
    kv_tokens: int = field(
        16384, help="positions of KV cache, shared by all sequences; 0 takes what a GPU has free"
    )
    page_size: int = field(256, help="positions of a KV page")
    prefill_tokens: int | None = field(
        None, help="prompt positions run in one step (default: 2048 on a GPU, else 256)"
    )
    draft_step_s: float = field(
        1.0, help="longest wait for a draft in a step; then it goes on without, until the answer"
    )
    spin_s: float | None = field(
        None,
        help="how long a draft's answer is looked for at a local socket before sleeping, which "
        "keeps a core busy (default: 0.02 on a GPU with 8 cores or more, else 0)",
    )
    timeline: Path | None = field(
        None, help="file for the times of each step, written at the end (bench timeline reads it)"
    )
    deterministic: bool = field(
        False,
        help="on a GPU: the same bits for a token whatever batch and width it is computed in, so "
        "that speculative output is the plain one's in every dtype; slower (a CPU always does it)",
    )
    ping_pong: Literal["off", "auto", "always"] = field(
        "off",
        help="two halves of the sequences take turns, one at the target, one at the draft, which "
        "then needs a device of its own; auto where the costs of steps say that it pays, for "
        "--width-policy auto on a GPU",
    )
    stream_interval_s: float | None = field(
        None,
        help="plain steps' tokens that come sooner after a request's last message wait and share "
        "one: routers and clients take some thousands of messages a second (default: 0.003 on a "
        "GPU, else 0)",
    )
    overlap: bool = field(
        True,
        help="the next step starts before the last one's tokens are sent; --no-overlap is for "
        "debugging: slower, output is the same",
    )
    benchmark: bool = field(False, help="allows the benchmark-... options; not for serving")
    benchmark_synthetic_acceptance: str | None = field(
        None,
        help="acceptance that is pretended: a mean length such as 6.5, or a rate a position; "
        "answers are not the target's then",
    )
    draft_timeout_s: float = field(10.0, help="a draft that owes an answer so long is given up")
    draft_connect_s: float = field(
        2.0, help="longest wait of a request for a draft that it is the first to need; then plain"
    )
    step_timeout_s: float = field(
        300.0, help="longest step; then the process ends, as the engine hangs"
    )
    grace_s: float = field(30.0, help="time running requests get after SIGTERM")

    def __post_init__(self) -> None:
        ServiceOptions.__post_init__(self)
        check_name(self.data_plane, encrypted=self.tls_cert is not None)
        if self.kv_tokens < (0 if self.device.startswith("cuda") else 1):
            raise OptionError("kv_tokens", self.kv_tokens, "must be at least 1, or 0 on a GPU")
        for name in ("max_sequences", "page_size", "prefill_tokens"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise OptionError(name, value, "must be at least 1")
        for name in ("threads", "width", "max_waiting"):
            if getattr(self, name) < 0:
                raise OptionError(name, getattr(self, name), "must not be negative")
        if self.benchmark_synthetic_acceptance is not None and not self.benchmark:
            raise OptionError(
                "benchmark_synthetic_acceptance",
                self.benchmark_synthetic_acceptance,
                "is for benchmarks only: answers are not the target's; add --benchmark",
            )
        if self.timeline and not os.access(self.timeline.absolute().parent, os.W_OK):
            raise OptionError(
                "timeline", str(self.timeline), "give a file in a folder that can be written"
            )
        check_seconds(self, "draft_step_s", "draft_timeout_s", "draft_connect_s")
        check_seconds(self, "step_timeout_s", "grace_s")
        if self.stream_interval_s is not None:
            check_seconds(self, "stream_interval_s", or_zero=True)
        if self.spin_s is not None:
            check_seconds(self, "spin_s", or_zero=True)
        if self.width > 1 and self.draft is None:
            raise OptionError("width", self.width, "needs a draft: give --draft, or no --width")

    @property
    def prompt_positions(self) -> int:
        """prefill_tokens, or the device's default: a GPU is not full with fewer."""
        return self.prefill_tokens or (2048 if self.device.startswith("cuda") else 256)
