"""The router put together: other services, the served model, the gRPC server."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from domino_serve.v1 import generate_pb2
from domino_serve.v1.generate_pb2_grpc import add_GenerateServiceServicer_to_server
from router.admission import Admission
from router.config import RouterConfig
from router.discovery import discovery
from router.failover import Failover
from router.groups import VerifyGroups
from router.model import served_model
from router.seats import DraftSeats
from router.servicer import GenerateServicer
from router.tokenizer import Tokenizer
from serving.aio_server import AioServer
from serving.set_up import set_up

SERVICE = generate_pb2.DESCRIPTOR.services_by_name["GenerateService"].full_name


@asynccontextmanager
async def open_router(config: RouterConfig) -> AsyncIterator[AioServer]:
    """A started server, once the verify service answers; the draft may come and go."""
    set_up("router", config)
    server = AioServer(
        "router",
        host=config.host,
        port=config.port,
        grace_s=config.grace_s,
        notice_s=config.notice_s,
        options=config,
    )
    tokenizer = Tokenizer.load(config.target)
    async with AsyncExitStack() as stack:
        seats: DraftSeats | None = None
        if config.draft:
            seats = DraftSeats(discovery("draft", config.draft), config.seat_timeout_s)
            await stack.enter_async_context(seats)
        groups = VerifyGroups(
            discovery("verify", config.verify), drafts=seats.addresses if seats else tuple
        )
        await stack.enter_async_context(groups)
        target = await groups.target(config.startup_timeout_s)
        model = served_model(target, tokenizer, config)
        servicer = GenerateServicer(
            model=model,
            admission=Admission(config, tokenizer, model),
            tokenizer=tokenizer,
            failover=Failover(groups, seats, config.failover_s),
            max_requests=config.max_requests,
        )
        add_GenerateServiceServicer_to_server(servicer, server.grpc)
        await server.start(SERVICE)
        try:
            yield server
        finally:
            await server.grpc.stop(None)
