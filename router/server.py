"""The router put together: channels, the served model, the gRPC server."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from domino_serve.v1 import generate_pb2
from domino_serve.v1.generate_pb2_grpc import add_GenerateServiceServicer_to_server
from router.admission import Admission
from router.config import RouterConfig
from router.model import served_model
from router.seats import DraftSeats
from router.servicer import GenerateServicer
from router.tokenizer import Tokenizer
from router.verify import VerifyClient
from serving.aio_server import AioServer
from serving.channel import aio_channel

SERVICE = generate_pb2.DESCRIPTOR.services_by_name["GenerateService"].full_name


@asynccontextmanager
async def open_router(config: RouterConfig) -> AsyncIterator[AioServer]:
    """A started server, once the verify service answers; the draft may come and go."""
    server = AioServer(
        "router", host=config.host, port=config.port, grace_s=config.grace_s, options=config
    )
    tokenizer = Tokenizer.load(config.target)
    # An unused channel connects to nothing, so one to nowhere stands in for a missing draft.
    async with (
        aio_channel(config.verify) as verify_channel,
        aio_channel(config.draft or "localhost:0") as draft_channel,
    ):
        verify = VerifyClient(config.verify, verify_channel)
        target = await verify.target(config.startup_timeout_s)
        model = served_model(target, tokenizer, config)
        servicer = GenerateServicer(
            model=model,
            admission=Admission(config, tokenizer, model),
            tokenizer=tokenizer,
            verify=verify,
            seats=DraftSeats(config.draft, draft_channel, config.seat_timeout_s)
            if config.draft
            else None,
            max_requests=config.max_requests,
        )
        add_GenerateServiceServicer_to_server(servicer, server.grpc)
        await server.start(SERVICE)
        try:
            yield server
        finally:
            await server.grpc.stop(None)
