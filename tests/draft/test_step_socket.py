"""The draft service's local socket when the service ends."""

import threading

from domino_serve.v1 import draft_pb2
from draft_service.step_socket import StepSocket
from serving.transport.frames import Frames


def test_no_stream_runs_any_more_once_it_is_closed() -> None:
    """A stream's thread that is inside torch when Python ends aborts the process: a draft that was
    updated under load ended with SIGABRT."""
    began, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def serve(frames: Frames) -> None:
        began.set()
        for _ in frames.messages(draft_pb2.StepRequest):
            pass
        frames.close()
        assert may_end.wait(60)
        ended.set()

    socket = StepSocket(serve)
    client = Frames.connected(socket.name)
    assert began.wait(60)
    client.close()
    closer = threading.Thread(target=socket.close)
    closer.start()
    may_end.set()
    closer.join(60)
    assert ended.is_set()
