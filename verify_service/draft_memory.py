"""Agrees with a draft on the memory that rows travel in, before a stream's first step.

Called by verify_service.draft_link. What goes wrong with memory leaves rows inline, and says so.
"""

import logging
from collections.abc import Collection, Mapping
from typing import Protocol

import torch
from torch import Tensor

from domino_serve.v1 import draft_pb2
from serving.errors import DraftUnavailable
from serving.transport.choice import offered
from serving.transport.plane import NAMES, MakeMemory, OwnMemory, Plane
from serving.transport.sender import Sender
from verify_service.config import VerifyConfig
from verify_service.ranks import own_device

log = logging.getLogger(__name__)


def memories_of(config: VerifyConfig) -> Mapping[Plane, MakeMemory]:
    """What --data-plane offers on this service's device; raises OptionError."""
    return offered(config.data_plane, torch.device(own_device(config.device)))


class Exchange(Protocol):
    """As much of a link as an offer needs."""

    def send(self, request: draft_pb2.StepRequest, rows: Tensor | None) -> None: ...
    def receive(self, timeout_s: float) -> draft_pb2.StepResponse | None: ...


def agree(
    link: Exchange,
    sender: Sender,
    memories: Mapping[Plane, MakeMemory],
    taken: Collection[Plane],
    *,
    peer: str,
    timeout_s: float,
) -> None:
    """Offers each of `memories` that the draft takes until one is shared.

    Raises DraftUnavailable, after which the link is dead.
    """
    refusals: list[str] = []
    for plane, make in memories.items():
        if plane not in taken:
            refusal: str | None = "the draft service does not take it"
        else:
            refusal = _offer(link, sender, make, timeout_s)
        if refusal is None:
            break
        refusals.append(f"{NAMES[plane]}: {refusal}")
    if refusals:
        log.warning("%s: rows go %s; %s", peer, NAMES[sender.plane], "; ".join(refusals))
    else:
        log.info("%s: rows go %s", peer, NAMES[sender.plane])


def _offer(link: Exchange, sender: Sender, make: MakeMemory, timeout_s: float) -> str | None:
    """Why the memory cannot be used; None when it is."""
    try:
        memory = make()
        try:
            offer = memory.offer()
        except BaseException:
            _discard(memory)
            raise
    except (OSError, RuntimeError) as error:
        return f"cannot be made: {error}"
    try:
        link.send(draft_pb2.StepRequest(offer=offer), None)
        answer = link.receive(timeout_s + memory.join_s)
    except DraftUnavailable:
        _discard(memory)
        raise
    return sender.agree(memory, answer or draft_pb2.StepResponse())


def _discard(memory: OwnMemory) -> None:
    """With its name."""
    memory.answered()
    memory.close()
