"""What a router does with a request before any verify service has it."""

import asyncio
from typing import Any

from domino_serve.v1 import generate_pb2 as pb
from domino_serve.v1 import speculation_pb2 as spec
from router.admission import Work
from router.failover import Failover
from router.servicer import GenerateServicer
from router.tokenizer import Tokenizer
from tests.router.tiny_tokenizer import byte_level
from tests.router.work import work

NOBODY: Any = None  # no verify service is to be asked


class SlowAdmission:
    """Takes as long as the test says, as a long prompt does."""

    def __init__(self) -> None:
        self.began, self.may_end = asyncio.Event(), asyncio.Event()

    async def admit(self, request_id: str, request: pb.GenerateRequest) -> Work:
        self.began.set()
        await self.may_end.wait()
        return work()


class Context:
    """A client's call."""

    def __init__(self) -> None:
        self.sent: list[pb.GenerateResponse] = []

    def time_remaining(self) -> None:
        """There is no deadline."""

    async def write(self, response: pb.GenerateResponse) -> None:
        self.sent.append(response)


def test_an_abort_reaches_a_request_whose_prompt_is_still_read() -> None:
    """Prevents a request that its client has ended, in vain, from running to max_tokens."""

    async def run() -> list[pb.GenerateResponse]:
        admission, context = SlowAdmission(), Context()
        servicer = GenerateServicer(
            model=pb.GetModelInfoResponse(),
            admission=admission,  # type: ignore[arg-type]
            tokenizer=Tokenizer(byte_level(), None),
            failover=Failover(NOBODY, None, 0.0),
            max_requests=1,
        )
        call: Any = context
        generating = asyncio.ensure_future(
            servicer.Generate(pb.GenerateRequest(request_id="mine"), call)
        )
        await admission.began.wait()
        assert (await servicer.Abort(pb.AbortRequest(request_id="mine"), call)).found
        admission.may_end.set()
        await generating
        assert not (await servicer.Abort(pb.AbortRequest(request_id="mine"), call)).found
        return context.sent

    (last,) = asyncio.run(run())
    assert last.complete.finish_reason == spec.FINISH_REASON_ABORT
    assert last.complete.speculation.mode == spec.MODE_AR
