"""What every server process does the same way: exit codes, binding, health names, ready line.

serving.server (sync) and serving.aio_server build on it.
"""

import json
import logging
import os
import socket
import sys
from collections.abc import Callable
from typing import Final

import grpc

from serving.errors import ServingError, StartError
from serving.log import set_up_logs
from serving.tls import Tls

_log = logging.getLogger(__name__)

# Names in grpc.health.v1: LIVENESS serves from the start, READINESS from ready to drain.
LIVENESS: Final = "liveness"
READINESS: Final = ("", "readiness")


def run(main: Callable[[], int], service: str) -> int:
    """`main`'s exit code; what a user can mend at start becomes one line and code 1."""
    set_up_logs(service, "text")
    try:
        return main()
    except (StartError, ServingError) as error:
        print(f"{service}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def bind(
    server: grpc.Server | grpc.aio.Server, host: str, port: int, tls: Tls | None = None
) -> str:
    """Address the server listens on, port 0 resolved; StartError when it cannot."""
    name = f"[{host}]" if ":" in host else host
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        # Tried first by ourselves: gRPC does not tell its reason, and logs a line of its own.
        socket.create_server((host, port), family=family).close()
        if tls:
            bound = server.add_secure_port(f"{name}:{port}", tls.server_credentials())
        else:
            bound = server.add_insecure_port(f"{name}:{port}")
        return f"{name}:{bound}"
    except (OSError, RuntimeError) as error:
        raise StartError(
            f"cannot listen on {name}:{port}: {error}; choose another --port (0 takes a free one)"
        ) from error


def announce(service: str, address: str) -> None:
    """The ready line: one JSON object on stdout, for whoever started the process."""
    line = {"event": "ready", "service": service, "address": address, "pid": os.getpid()}
    print(json.dumps(line), flush=True)
    _log.info("ready on %s", address)
