"""A server process with one call that hangs until it is cancelled.

`... sync|aio PORT GRACE_S`, or a Unix socket in the port's place.
"""

import asyncio
import sys
import threading
from typing import Any

import grpc

from serving.aio_server import AioServer
from serving.process import run
from serving.server import Server
from serving.service_options import ServiceOptions


def handlers(hang: Any) -> grpc.GenericRpcHandler:
    methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "Hang": grpc.unary_stream_rpc_method_handler(hang)
    }
    return grpc.method_handlers_generic_handler("test.Hanger", methods)


def hang(request: bytes, context: grpc.ServicerContext) -> Any:
    cancelled = threading.Event()
    context.add_callback(cancelled.set)
    yield b"started"
    cancelled.wait()


async def aio_hang(request: bytes, context: Any) -> Any:
    yield b"started"
    await asyncio.Event().wait()


def place(where: str) -> dict[str, Any]:
    """Of a server: a port, or a Unix socket."""
    if where.isdecimal():
        return {"host": "127.0.0.1", "port": int(where)}
    return {"host": "127.0.0.1", "port": 0, "options": ServiceOptions(listen=where)}


def serve(where: str, grace_s: float) -> int:
    server = Server("hanger", grace_s=grace_s, **place(where))
    server.grpc.add_generic_rpc_handlers((handlers(hang),))
    server.start("test.Hanger")
    server.ready()
    return server.wait(lambda: print("draining", flush=True))


async def aio_serve(where: str, grace_s: float) -> int:
    server = AioServer("hanger", grace_s=grace_s, **place(where))
    server.grpc.add_generic_rpc_handlers((handlers(aio_hang),))
    await server.start("test.Hanger")
    await server.ready()
    waiting = asyncio.create_task(server.wait())
    await server.draining.wait()
    print("draining", flush=True)
    return await waiting


def main(stack: str, where: str, grace_s: float) -> int:
    if stack == "sync":
        return run(lambda: serve(where, grace_s), "hanger")
    return run(lambda: asyncio.run(aio_serve(where, grace_s)), "hanger")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], float(sys.argv[3])))
