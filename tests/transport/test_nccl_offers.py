"""How a draft joins those whom rows come from: with limits, and nobody is believed."""

import signal
import socket
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch

from domino_serve.v1 import draft_pb2
from serving.errors import BadRequest
from serving.transport import nccl
from serving.transport.nccl import OwnNccl
from serving.transport.pair import PairLost
from serving.transport.sender import Sender
from tests.transport import fake_nccl
from tests.transport.memory import COLUMNS, numbers
from tests.transport.sent import CPU, GPUS, SOON_S, Devices, receiver

pytestmark = pytest.mark.usefixtures("patient")
VERIFY = """
import sys, torch
from domino_serve.v1 import draft_pb2
from serving.transport.nccl import OwnNccl
memory = OwnNccl(torch.device(sys.argv[1]))
print(memory.offer().SerializeToString().hex(), flush=True)
sys.stdin.readline()
memory.fill(0, torch.ones(2, 8, device=sys.argv[1]), 1)
sys.stdin.read()
"""


def test_another_nonce_is_another_verify_services(devices: Devices) -> None:
    """Whoever the draft has joined, it is not this one."""
    memory, other = OwnNccl(devices[0]), OwnNccl(devices[0])
    draft = receiver(devices)
    answer = draft_pb2.StepResponse(offer=draft.answer(other.offer()))
    assert Sender().agree(memory, answer) == "the draft found another nonce in it"
    memory._sending.join()
    draft.close()
    other.close()


def test_a_draft_that_never_joins(devices: Devices, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its verify service must not keep a thread and a port for it."""
    monkeypatch.setattr(nccl, "JOIN_S", SOON_S)
    memory = OwnNccl(devices[0])
    memory._sending.join()
    with pytest.raises(PairLost, match="timed out"):
        memory.fill(0, numbers(1).to(devices[0]), 1)
    memory.close()


def test_a_verify_service_that_is_gone_when_the_draft_joins(
    devices: Devices, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer would keep every other verify service of the draft waiting."""
    monkeypatch.setattr(nccl, "JOIN_S", SOON_S)
    memory = OwnNccl(devices[0])
    offer = memory.offer()
    memory.close()
    answer = receiver(devices).answer(offer)
    assert answer.refusal and not answer.nonce


def test_a_verify_service_that_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A port that anybody holds open would keep the draft."""
    monkeypatch.setattr(nccl, "JOIN_S", SOON_S)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        group = draft_pb2.NcclGroup(address=address, token=bytes(32))
        offer = draft_pb2.MemoryOffer(nccl=group, slots=2, slot_bytes=64)
        assert receiver((CPU, CPU)).answer(offer).refusal == "timed out"


def test_strangers_are_sent_away() -> None:
    """Whoever finds the port first would be sent what people write."""
    memory = OwnNccl(CPU)
    host, _, port = memory.offer().nccl.address.rpartition(":")
    with socket.create_connection((host, int(port))) as stranger:
        stranger.sendall(bytes(32))
        assert stranger.recv(1) == b""
        draft = receiver((CPU, CPU))
        assert draft.answer(memory.offer()).nonce == memory.nonce
    with pytest.raises(ConnectionRefusedError), socket.create_connection((host, int(port))):
        pass
    draft.close()
    memory.close()


def gpu_group(group: draft_pb2.NcclGroup) -> None:
    group.CopyFrom(draft_pb2.NcclGroup(unique_id=bytes(128)))


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (gpu_group, "a group of GPUs, and this draft service has none"),
        (lambda group: group.Clear(), "a group of GPUs"),
        (lambda group: setattr(group, "token", b"short"), "a group of GPUs"),
        (lambda group: setattr(group, "address", "127.0.0.1:"), "invalid literal"),
        (lambda group: setattr(group, "address", "some.host:1"), "does not appear to be an IPv4"),
        (lambda group: setattr(group, "address", "127.0.0.1:99999"), "must be 0-65535"),
        (lambda group: setattr(group, "address", "127.0.0.1:1"), "Connection refused"),
    ],
)
def test_offers_are_not_believed(spoil: Callable[[draft_pb2.NcclGroup], None], reason: str) -> None:
    """Garbage must be an answer, and leave nothing open."""
    memory = OwnNccl(CPU)
    offer = memory.offer()
    spoil(offer.nccl)
    assert reason in receiver((CPU, CPU)).answer(offer).refusal
    memory.close()


def test_a_group_of_cpus_is_refused_on_a_gpu() -> None:
    """NCCL reads 128 bytes, whatever is there."""
    group = draft_pb2.NcclGroup(address="127.0.0.1:1", token=bytes(32))
    offer = draft_pb2.MemoryOffer(nccl=group, slots=2, slot_bytes=64)
    with fake_nccl.in_place():
        assert "no group of GPUs" in receiver((CPU, CPU)).answer(offer).refusal


@pytest.mark.parametrize("devices", ["tcp", GPUS], indirect=True)
def test_a_verify_service_that_is_killed(devices: Devices, monkeypatch: pytest.MonkeyPatch) -> None:
    """kill -9 with rows under way must leave neither the draft's thread nor its GPU waiting."""
    command = [sys.executable, "-c", VERIFY, str(devices[0])]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as peer:
        assert peer.stdin and peer.stdout
        draft = receiver(devices)
        offer = draft_pb2.MemoryOffer.FromString(bytes.fromhex(peer.stdout.readline()))
        assert draft.answer(offer).nonce
        peer.stdin.write("\n")
        peer.stdin.flush()
        mapped = draft._memory
        assert mapped is not None
        rows = mapped.read(0, 1, (2, COLUMNS), torch.float32)
        assert torch.equal(rows.cpu(), torch.ones(2, COLUMNS))
        peer.kill()
        assert peer.wait() == -signal.SIGKILL
    monkeypatch.setattr(nccl, "MOVE_S", SOON_S)
    with pytest.raises(BadRequest, match=r"^rows.nccl: "):
        mapped.read(0, 2, (2, COLUMNS), torch.float32)
    assert torch.ones(1, device=devices[1]).add(1).item() == 2
