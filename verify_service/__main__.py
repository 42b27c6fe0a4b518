"""`python -m verify_service`: loads the target, then serves VerifyService until told to stop."""

import os
import sys
from functools import partial

from domino_serve.v1 import verify_pb2, verify_pb2_grpc
from serving.compute_thread import ComputeThread
from serving.options import parse
from serving.process import run
from serving.server import Server
from serving.set_up import set_up
from serving.watchdog import watch_steps
from verify_service.config import VerifyConfig

SERVICE = "verify"
SPARE_WORKERS = 8  # unary calls, health and reflection beside one thread per request


def main() -> int:
    """Runs the service; the exit code."""
    config = parse(
        VerifyConfig,
        prog="python -m verify_service",
        description="Serves the target model: prefill, verification and acceptance.",
    )
    set_up(SERVICE, config)
    if os.environ.get("RANK", "0") != "0":  # torchrun's variable: another process serves
        from verify_service.following import follow

        return follow(config)
    workers = config.max_sequences + config.max_waiting + SPARE_WORKERS
    server = Server(
        SERVICE,
        host=config.host,
        port=config.port,
        grace_s=config.grace_s,
        max_workers=workers,
        options=config,
    )
    # Torch takes seconds to import: a bad option or a taken port is told before.
    from serving.transport.spin import spin_s
    from verify_service.draft_link import GrpcDraftLink
    from verify_service.draft_links import DraftLinks
    from verify_service.draft_memory import memories_of
    from verify_service.load import load
    from verify_service.metrics import watch
    from verify_service.servicer import VerifyServicer

    compute = ComputeThread("verify-engine")
    loaded = compute.run(lambda: load(config))
    links = DraftLinks(
        loaded.hello,
        config.draft_connect_s,
        follow=loaded.updates.follow if loaded.updates else None,
        memories=memories_of(config),
        connect=partial(GrpcDraftLink, spin_s=spin_s(config.spin_s, config.device)),
    )
    servicer = VerifyServicer(loaded.engine, loaded.info, loaded.draft, links, server.draining)
    verify_pb2_grpc.add_VerifyServiceServicer_to_server(servicer, server.grpc)
    watch(loaded.engine, links)
    loaded.engine.start(on_failure=server.fail, compute=compute)
    watch_steps(loaded.engine, config.step_timeout_s)
    server.start(verify_pb2.DESCRIPTOR.services_by_name["VerifyService"].full_name)
    server.ready()
    code = server.wait()
    loaded.engine.stop()
    loaded.end()
    if config.timeline:
        loaded.engine.timeline.write(config.timeline)
    links.close()
    return code


if __name__ == "__main__":
    sys.exit(run(main, SERVICE))
