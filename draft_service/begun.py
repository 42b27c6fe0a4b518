"""Blocks that began before they were asked for: a message of this process in, whether they are it.

Made by draft_service.engine; used where target and draft share a device.
"""

from dataclasses import dataclass

from domino_serve.v1 import draft_pb2
from draft_service.executor import Begun
from serving.early_cover import covers


@dataclass(frozen=True, slots=True, kw_only=True)
class BegunBlocks:
    """One step of all `sessions`, numbers by row, whose context ended at `starts`; `count`
    proposals each."""

    step: Begun
    sessions: dict[int, int]
    starts: list[int]
    count: int

    def covers(self, request: draft_pb2.StepRequest) -> bool:
        """Whether it did what the message asks for, or more."""
        return covers(
            request,
            places=self.sessions,
            starts=self.starts,
            taken=self.step.taken,
            count=self.count,
        )

    def proposals(self, step: draft_pb2.SessionStep) -> list[int]:
        """What the step asked for; waits for the device."""
        return self.step.proposals[self.sessions[step.session]][: step.draft_tokens]
