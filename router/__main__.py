"""`python -m router --target DIR --verify HOST:PORT [--draft HOST:PORT]`."""

import asyncio
import sys
from collections.abc import Sequence

from router.config import RouterConfig
from router.server import open_router
from serving.options import parse
from serving.process import run


async def _serve(config: RouterConfig) -> int:
    async with open_router(config) as server:
        await server.ready()
        return await server.wait()


def main(argv: Sequence[str] | None = None) -> int:
    config = parse(
        RouterConfig,
        argv,
        prog="python -m router",
        description="Front door of domino-serve: text, chat or token ids in, text out.",
    )
    return run(lambda: asyncio.run(_serve(config)), "router")


if __name__ == "__main__":
    sys.exit(main())
