"""Messages by a local socket: whole, in order, in time, and an end that is noticed at once."""

import os
import resource
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from domino_serve.v1 import draft_pb2
from serving.transport.frames import Frames, FramesEnded
from serving.transport.frames_listener import FramesListener
from serving.transport.spin import SPIN_S, spin_s, spinning


@pytest.fixture(params=[0.0, 0.02, 60.0], ids=["sleeping", "spinning-first", "spinning"])
def ends(request: pytest.FixtureRequest) -> Iterator[tuple[Frames, Frames]]:
    """Both ends of a connection, by a listener; whatever waits for them."""
    listener = FramesListener(spin_s=request.param)
    there = Frames.connected(listener.name, spin_s=request.param)
    here = listener.accept()
    assert here is not None
    yield there, here
    there.close()
    here.close()
    listener.close()


def message(number: int, size: int = 0) -> draft_pb2.StepRequest:
    found = draft_pb2.StepRequest(sequence_number=number)
    found.rows.inline = bytes(size)
    return found


def test_messages_arrive_whole_and_in_order(ends: tuple[Frames, Frames]) -> None:
    """A length cut by a read, or two messages in one."""
    there, here = ends
    sizes = [0, 1, 70_000, 3_000_000, 5]
    sent = [message(i, size) for i, size in enumerate(sizes)]
    thread = threading.Thread(target=lambda: send_all(there, sent))
    thread.start()
    assert [here.receive(draft_pb2.StepRequest, 30) for _ in sizes] == sent
    thread.join()


def test_nothing_in_time_is_none_and_comes_later(ends: tuple[Frames, Frames]) -> None:
    """A late draft whose answer is lost, or that stops a step for good."""
    there, here = ends
    assert here.receive(draft_pb2.StepRequest, 0) is None
    assert here.receive(draft_pb2.StepRequest, 0.01) is None
    there.send(message(7), 30)
    assert here.receive(draft_pb2.StepRequest, 30) == message(7)


def test_an_end_is_seen_at_once(ends: tuple[Frames, Frames]) -> None:
    """Requests that wait for a draft which has died."""
    there, here = ends
    assert there.is_open and here.is_open
    there.cancel()
    assert not here.is_open
    with pytest.raises(FramesEnded, match="ended the stream"):
        here.receive(draft_pb2.StepRequest, 30)
    assert list(here.messages(draft_pb2.StepRequest)) == []
    here.close()
    assert not here.is_open
    with pytest.raises(FramesEnded):
        here.send(message(1), 30)


@pytest.mark.parametrize(
    ("data", "reason"),
    [(b"\xff\xff\xff\xff", "bytes"), (b"\x02\x00\x00\x00\xff\xff", "no message")],
)
def test_what_is_no_message_ends_the_connection(data: bytes, reason: str) -> None:
    """Memory for four gigabytes, or a decoder's exception in the engine's thread."""
    ours, theirs = socket.socketpair()
    frames = Frames(ours)
    theirs.sendall(data)
    with pytest.raises(FramesEnded, match=reason):
        frames.receive(draft_pb2.StepRequest, 30)
    theirs.close()
    frames.close()


def test_a_peer_that_takes_nothing_is_given_up(ends: tuple[Frames, Frames]) -> None:
    """An engine that hangs with its draft: the socket's buffer is full."""
    there, _ = ends
    with pytest.raises(FramesEnded, match="cannot be sent to"):
        there.send(message(1, 30_000_000), 0.05)


def test_other_names_lead_nowhere() -> None:
    """A name is all that another host's process would have."""
    with pytest.raises(OSError):
        Frames.connected("domino-serve-of-nobody")


def test_a_listener_that_has_no_file_left_refuses_whoever_comes() -> None:
    """Prevents connections that nobody accepts ever, after a moment without a free file: gRPC is
    taken where they are refused."""
    listener = FramesListener()
    waiting = Frames.connected(listener.name)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    next_file = os.dup(0)
    os.close(next_file)
    resource.setrlimit(resource.RLIMIT_NOFILE, (next_file, limits[1]))
    try:
        accepted = listener.accept()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert accepted is None
    assert not waiting.is_open
    with pytest.raises(ConnectionRefusedError):
        Frames.connected(listener.name)
    waiting.close()


def test_who_waits_is_woken_by_an_end(ends: tuple[Frames, Frames]) -> None:
    """A drain that waits for a stream whose thread sleeps, or looks on for ever."""
    _, here = ends
    found: list[draft_pb2.StepRequest] = []
    waiting = threading.Thread(
        target=lambda: found.extend(here.messages(draft_pb2.StepRequest)), daemon=True
    )
    waiting.start()
    here.cancel()
    waiting.join(30)
    assert not waiting.is_alive() and not found


@pytest.mark.parametrize(
    ("option", "device", "cores", "seconds"),
    [
        (None, "cuda:1", 8, SPIN_S),
        (None, "cuda", 7, 0.0),
        (None, "cpu", 64, 0.0),
        (0.0, "cuda", 64, 0.0),
        (0.5, "cpu", 2, 0.5),
    ],
)
def test_only_who_has_cores_to_spare_looks_on_by_default(
    option: float | None,
    device: str,
    cores: int,
    seconds: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A service that looks for messages on the cores that compute."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    assert spin_s(option, device) == seconds


def test_one_thread_of_a_process_spins() -> None:
    """A draft with several verify services, whose threads take Python's lock from each other."""
    soon = time.monotonic() + 600
    with spinning(soon) as first, spinning(soon) as second:
        assert first() and first() and not second()
    with spinning(soon) as third:
        assert third()


def test_who_has_spun_long_enough_sleeps_and_lets_another_spin() -> None:
    """One idle stream that keeps all others of its process from spinning."""
    with spinning(time.monotonic() - 1) as late, spinning(time.monotonic() + 600) as next_one:
        assert not late() and next_one()


def send_all(frames: Frames, messages: list[draft_pb2.StepRequest]) -> None:
    for one in messages:
        frames.send(one, 30)
