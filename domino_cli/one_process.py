"""`python -m domino_cli.one_process`: verify and draft in one process, on one device.

Both services at one address. For the draft of this process there is no hop: rows pass by reference
and its step runs in verify's engine thread (the in-process data plane).
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from domino_serve.v1 import draft_pb2, draft_pb2_grpc, verify_pb2, verify_pb2_grpc
from draft_service.config import DraftServiceConfig
from serving.options import OptionError, field, parse
from serving.process import run
from serving.server import Server
from serving.set_up import set_up
from verify_service.config import VerifyConfig

SERVICE = "engines"
STREAMS = 64  # handler threads beside one per request: calls to the draft, health
OWN = {"kv_tokens": "draft_kv_tokens", "device": "device"}  # the draft's options of other names


@dataclass(frozen=True, slots=True, kw_only=True)
class OneProcessConfig(VerifyConfig):
    """Verify's options, and the draft's that verify has not."""

    domino_candidates: str = field("0", help="as of the draft service")
    draft_window: int = field(0, help="as of the draft service")
    int8: bool = field(True, help="as of the draft service")
    confidence_threshold: float = field(0.0, help="as of the draft service")
    max_sessions: int = field(64, help="as of the draft service")
    draft_kv_tokens: int = field(32768, help="positions of draft KV cache")
    max_rows: int = field(4096, help="as of the draft service")
    ticket_ttl_s: float = field(10.0, help="time a reserved seat waits to be opened")

    def __post_init__(self) -> None:
        VerifyConfig.__post_init__(self)
        if self.draft is None:
            raise OptionError("draft", None, "is missing: without one, start verify_service")
        self.draft_config()

    def draft_config(self) -> DraftServiceConfig:
        """The draft's options; raises OptionError."""
        mine = {spec.name for spec in fields(self)}
        values: Mapping[str, Any] = {
            spec.name: getattr(self, OWN.get(spec.name, spec.name))
            for spec in fields(DraftServiceConfig)
            if OWN.get(spec.name, spec.name) in mine
        }
        # Other verify services' passes must not hold up the target's own steps.
        return DraftServiceConfig(**values, early_steps=False)


def main() -> int:
    """Runs both services; the exit code."""
    config = parse(
        OneProcessConfig,
        prog="python -m domino_cli.one_process",
        description="Serves target and draft from one process.",
    )
    set_up(SERVICE, config)
    server = Server(
        SERVICE,
        host=config.host,
        port=config.port,
        grace_s=config.grace_s,
        max_workers=config.max_sequences + config.max_waiting + STREAMS,
        options=config,
    )
    from domino_cli.one_process_engines import Engines  # imports torch, which takes seconds

    engines = Engines(config, server)
    verify_pb2_grpc.add_VerifyServiceServicer_to_server(engines.verify, server.grpc)
    draft_pb2_grpc.add_DraftServiceServicer_to_server(engines.draft, server.grpc)
    engines.start()
    services = (verify_pb2.DESCRIPTOR, draft_pb2.DESCRIPTOR)
    names = [s.full_name for file in services for s in file.services_by_name.values()]
    server.start(*names)
    server.ready()
    code = server.wait(on_drain=engines.draft.end_streams)
    engines.stop()
    return code


if __name__ == "__main__":
    sys.exit(run(main, SERVICE))
