"""`python -m draft_service`: loads the draft, then serves DraftService until told to stop."""

import os
import sys

from domino_serve.v1 import draft_pb2, draft_pb2_grpc
from draft_service.config import DraftServiceConfig
from serving.compute_thread import ComputeThread, Here, Runs
from serving.options import parse
from serving.process import run
from serving.server import Server
from serving.set_up import set_up
from serving.watchdog import watch_steps

SERVICE = "draft"


def main() -> int:
    """Runs the service; the exit code."""
    config = parse(
        DraftServiceConfig,
        prog="python -m draft_service",
        description="Serves the draft model: block backbone and Domino rollout.",
    )
    set_up(SERVICE, config)
    if os.environ.get("RANK", "0") != "0":  # torchrun's variable: another process serves
        from draft_service.following import follow

        return follow(config)
    server = Server(
        SERVICE, host=config.host, port=config.port, grace_s=config.grace_s, options=config
    )
    # Torch takes seconds to import: a bad option or a taken port is told before.
    from draft_service.load import load
    from draft_service.servicer import DraftServicer
    from draft_service.step_socket import listen
    from serving.tensors import DTYPES

    compute = ComputeThread("draft-engine")
    loaded = compute.run(lambda: load(config))
    servicer = DraftServicer(
        loaded,
        _where(config.device, compute),
        hidden=loaded.target.hidden_size,
        dtype=DTYPES[config.dtype],
        ttl_s=config.ticket_ttl_s,
        draining=server.draining,
    )
    servicer.health.on_failure = server.fail
    watch_steps(servicer.health, config.step_timeout_s)
    socket = listen(config, servicer.serve)
    servicer.step_socket = socket.name if socket else ""
    draft_pb2_grpc.add_DraftServiceServicer_to_server(servicer, server.grpc)
    server.start(draft_pb2.DESCRIPTOR.services_by_name["DraftService"].full_name)
    server.ready()
    code = server.wait(on_drain=servicer.end_streams)
    servicer.end_streams()  # also those that began beside the drain
    if socket:
        socket.close()
    loaded.end()
    return code


def _where(device: str, compute: ComputeThread) -> Runs:
    """What runs the steps: on a GPU the thread that a stream has."""
    import torch

    if torch.device(device).type != "cuda":
        return compute
    index = compute.run(torch.cuda.current_device)  # the one that the model was loaded on
    return Here(lambda: torch.cuda.set_device(index))


if __name__ == "__main__":
    sys.exit(run(main, SERVICE))
