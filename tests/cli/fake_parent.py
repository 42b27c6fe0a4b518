"""Starts two services, prints their process ids once they are ready, and waits to be killed."""

import queue
import signal

from domino_cli.service_process import Event, ServiceProcess

if __name__ == "__main__":
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it would be ignored
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    services = [
        ServiceProcess(
            name, "tests.cli.fake_service", ["serves"], events=events, say=lambda line: None
        )
        for name in ("one", "two")
    ]
    for _ in services:
        assert events.get().address is not None
    print(*(service.pid for service in services), flush=True)
    signal.pause()
