"""The two engines of one process and their services: verify has the draft beside it at hand."""

from collections.abc import Mapping

import draft_service.load
import verify_service.load
from domino_cli.local_link import LocalDraftLink
from domino_cli.one_process import OneProcessConfig
from domino_serve.v1 import draft_pb2
from draft_service.servicer import DraftServicer
from serving.compute_thread import ComputeThread
from serving.server import Server
from serving.tensors import DTYPES
from serving.transport.plane import MakeMemory, Plane
from serving.watchdog import watch_steps
from verify_service.draft_link import GrpcDraftLink, SeatedLink
from verify_service.draft_links import DraftLinks
from verify_service.draft_memory import memories_of
from verify_service.metrics import watch
from verify_service.servicer import VerifyServicer


class Engines:
    """Loaded when made; `verify` and `draft` are to be added to the server."""

    def __init__(self, config: OneProcessConfig, server: Server) -> None:
        """Raises CheckpointError or OptionError naming what does not fit."""
        self._config, self._server = config, server
        self._compute = ComputeThread("engines")
        loaded = self._compute.run(lambda: verify_service.load.load(config))
        drafting = config.draft_config()
        self.draft = DraftServicer(
            self._compute.run(lambda: draft_service.load.load(drafting)),
            ComputeThread("draft-engine"),  # for streams of other verify services
            hidden=loaded.info.target.hidden_size,
            dtype=DTYPES[config.dtype],
            ttl_s=config.ticket_ttl_s,
            draining=server.draining,
        )
        self.draft.health.on_failure = server.fail
        self._loaded = loaded
        self._links = DraftLinks(
            loaded.hello,
            config.draft_connect_s,
            follow=loaded.updates.follow if loaded.updates else None,
            memories=memories_of(config),
            connect=self._connect,
        )
        self.verify = VerifyServicer(
            loaded.engine, loaded.info, loaded.draft, self._links, server.draining
        )

    def start(self) -> None:
        """Runs verify's engine loop."""
        engine = self._loaded.engine
        watch(engine, self._links)
        engine.start(on_failure=self._server.fail, compute=self._compute)
        for steps in (engine, self.draft.health):
            watch_steps(steps, self._config.step_timeout_s)

    def stop(self) -> None:
        """Ends it, once the server has drained."""
        self._loaded.engine.stop()
        self._loaded.end()
        if self._config.timeline:
            self._loaded.engine.timeline.write(self._config.timeline)
        self._links.close()

    def _connect(
        self,
        address: str,
        hello: draft_pb2.HandshakeRequest,
        timeout_s: float,
        projection: int,
        memories: Mapping[Plane, MakeMemory],
    ) -> SeatedLink:
        """To the draft of this process without a hop, to others as every verify service does."""
        if address == self._server.address:
            return LocalDraftLink.greeting(self.draft.loaded, hello, projection)
        return GrpcDraftLink(address, hello, timeout_s, projection, memories)
