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
from serving.transport.unix_socket import claimed

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
    server: grpc.Server | grpc.aio.Server,
    host: str,
    port: int,
    tls: Tls | None = None,
    listen: str | None = None,
) -> str:
    """Address the server listens on, port 0 resolved; StartError when it cannot.

    listen: a Unix socket, `unix:/path`, in place of host and port.
    """
    if listen:
        with claimed(listen):
            _add(server, listen, tls)
        return listen
    check_port(host, port)  # gRPC does not tell its reason, and logs a line of its own
    name = _in_address(host)
    return f"{name}:{_add(server, f'{name}:{port}', tls)}"


def check_port(
    host: str, port: int, remedy: str = "choose another --port (0: a free one) or --host"
) -> None:
    """Raises StartError when nobody can listen there now."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        place = f"{_in_address(host)}:{port}"
        raise StartError(f"cannot listen on {place}: {error}; {remedy}") from error


def _in_address(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _add(server: grpc.Server | grpc.aio.Server, address: str, tls: Tls | None) -> int:
    """The port that was bound; raises StartError."""
    try:
        if tls:
            return server.add_secure_port(address, tls.server_credentials())
        return server.add_insecure_port(address)
    except RuntimeError as error:
        raise StartError(str(error)) from error


def announce(service: str, address: str) -> None:
    """The ready line: one JSON object on stdout, for whoever started the process."""
    line = {"event": "ready", "service": service, "address": address, "pid": os.getpid()}
    print(json.dumps(line), flush=True)
    _log.info("ready on %s", address)
