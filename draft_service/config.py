"""Options of the draft service."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from serving.options import OptionError, check_seconds, field
from serving.service_options import ServiceOptions
from serving.transport.plane import check_name

CERTIFIED: Final = "certified"


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftServiceConfig(ServiceOptions):
    """Command line and config file of `python -m draft_service`."""

    target: Path = field(help="folder of the target checkpoint; its embedding and head are used")
    draft: Path = field(help="folder of the draft checkpoint")
    target_sha256: str | None = field(
        None, help="hash the target must have, as `domino-serve inspect` shows it"
    )
    draft_sha256: str | None = field(
        None, help="hash the draft must have; update-draft loads no other then"
    )
    replaces: str = field(
        "",
        help="hashes of drafts of the same shape that this one comes after, with commas between: "
        "verify services that were started with one of them take it",
    )
    device: str = field("cpu", help="torch device, such as cpu or cuda:0")
    dtype: Literal["float32", "bfloat16", "float16"] = field("float32", help="computation dtype")
    data_plane: str = field(
        "auto",
        help="how rows may come from verify services: auto takes what they offer first, inline "
        "takes them in messages only; shm and cuda-ipc take one kind of memory of this host, nccl "
        "what another host's GPU sends",
    )
    threads: int = field(0, help="CPU threads; 0 leaves torch's default, and is 1 beside a GPU")
    int8: bool = field(
        True,
        help="on a CPU with AVX-512 VNNI, in float32: the draft's weights and the products of its "
        "rows in 8 bits, which makes a draft more than twice as fast and accepts some 1% less; "
        "answers are the target's own either way",
    )
    domino_candidates: str = field(
        "0",
        help="tokens the Domino correction scores a step: 0 is the exact full vocabulary, K the K "
        "best by base logits, certified gives the same proposals as 0 from fewer bytes on a GPU",
    )
    confidence_threshold: float = field(
        0.0,
        help="on a CPU, of Domino: a block ends before the proposal whose probability, times those "
        "of all before it, is below this by the draft's own word, since each position verified "
        "costs; 0 keeps whole blocks (`domino-serve` starts drafts on a CPU with 0.08)",
    )
    draft_window: int = field(
        0, help="committed positions that the draft attends to at most; 0 is all of them"
    )
    max_sessions: int = field(64, help="sessions at once; more requests run without a draft")
    kv_tokens: int = field(32768, help="positions of draft KV cache, shared by all sessions")
    page_size: int = field(256, help="positions of a KV page")
    max_rows: int = field(4096, help="projected rows taken in one step")
    step_socket: bool = field(
        True,
        help="steps of verify services on this host go by a local socket, without gRPC's threads",
    )
    spin_s: float | None = field(
        None,
        help="how long a step's message is looked for at a local socket before sleeping, which "
        "keeps a core busy (default: 0.02 on a GPU with 8 cores or more, else 0)",
    )
    early_steps: bool = field(
        True,
        help="on a GPU, for one verify service of this host: steps begin as soon as its GPU has "
        "ended a pass, before they are asked for; --no-early-steps is for debugging: slower, "
        "output is the same",
    )
    ticket_ttl_s: float = field(10.0, help="time a reserved seat waits to be opened")
    step_timeout_s: float = field(
        300.0, help="longest step; then the process ends, as its device hangs"
    )
    grace_s: float = field(10.0, help="time running steps get after SIGTERM")

    def __post_init__(self) -> None:
        ServiceOptions.__post_init__(self)
        check_name(self.data_plane, encrypted=self.tls_cert is not None)
        for name in ("max_sessions", "kv_tokens", "page_size", "max_rows"):
            if getattr(self, name) < 1:
                raise OptionError(name, getattr(self, name), "must be at least 1")
        for name in ("threads", "draft_window"):
            if getattr(self, name) < 0:
                raise OptionError(name, getattr(self, name), "must not be negative")
        if self.domino_candidates != CERTIFIED and not self.domino_candidates.isdecimal():
            remedy = f"must be an integer of at least 0 or {CERTIFIED}"
            raise OptionError("domino_candidates", self.domino_candidates, remedy)
        if not 0 <= self.confidence_threshold < 1:
            value = self.confidence_threshold
            raise OptionError("confidence_threshold", value, "must be at least 0 and less than 1")
        check_seconds(self, "ticket_ttl_s", "step_timeout_s", "grace_s")
        if self.spin_s is not None:
            check_seconds(self, "spin_s", or_zero=True)

    @property
    def candidates(self) -> int | Literal["certified"]:
        """domino_candidates, read."""
        return CERTIFIED if self.domino_candidates == CERTIFIED else int(self.domino_candidates)
