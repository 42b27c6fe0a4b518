"""GenerateService: admit, reserve a draft seat, run on verify, turn committed ids into text."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import grpc

from domino_serve.v1 import generate_pb2 as pb
from domino_serve.v1 import verify_pb2
from domino_serve.v1.generate_pb2_grpc import GenerateServiceServicer
from router.admission import Admission, Work
from router.seats import DraftSeats
from router.tokenizer import Tokenizer
from router.transcript import Transcript
from router.verify import VerifyClient
from serving.errors import BadRequest, Overloaded
from serving.guard import aio_guard

Context = grpc.aio.ServicerContext[Any, Any]


class GenerateServicer(GenerateServiceServicer):
    def __init__(
        self,
        *,
        model: pb.GetModelInfoResponse,
        admission: Admission,
        tokenizer: Tokenizer,
        verify: VerifyClient,
        seats: DraftSeats | None,
        max_requests: int,
    ) -> None:
        self._model = model
        self._admission = admission
        self._tokenizer = tokenizer
        self._verify = verify
        self._seats = seats
        self._max_requests = max_requests
        self._running: dict[str, str] = {}  # client's request id -> verify's

    # Writes instead of yielding: a cancelled handler must end inside its own `finally` blocks,
    # not whenever an abandoned generator is collected.
    async def Generate(  # type: ignore[override]
        self, request: pb.GenerateRequest, context: Context
    ) -> None:
        async with aio_guard(context):
            request_id = request.request_id or uuid.uuid4().hex
            with self._registered(request_id) as verify_id:
                work = await self._admission.admit(request_id, request)
                await self._run(work, verify_id, context)

    async def Abort(self, request: pb.AbortRequest, context: Context) -> pb.AbortResponse:
        async with aio_guard(context):
            verify_id = self._running.get(request.request_id)
            found = verify_id is not None and await self._verify.abort(verify_id)
        return pb.AbortResponse(found=found)

    async def GetModelInfo(
        self, request: pb.GetModelInfoRequest, context: Context
    ) -> pb.GetModelInfoResponse:
        return self._model

    async def _run(self, work: Work, verify_id: str, context: Context) -> None:
        transcript = Transcript(self._tokenizer, work)
        async with (
            self._seats.hold(work) if self._seats else nullcontext() as seat,
            self._verify.run(_verify_request(work, verify_id, seat)) as run,
        ):
            async for event in run:
                for response in transcript.add(event):
                    await context.write(response)
                if transcript.cut:
                    break

    @contextmanager
    def _registered(self, request_id: str) -> Iterator[str]:
        """The request's id on verify, where ids of several routers' clients meet."""
        if request_id in self._running:
            raise BadRequest("request_id", f"{request_id!r} is running already; ids are unique")
        if len(self._running) >= self._max_requests:
            raise Overloaded(
                f"{self._max_requests} requests are running, the most this router takes"
            )
        self._running[request_id] = uuid.uuid4().hex
        try:
            yield self._running[request_id]
        finally:
            del self._running[request_id]


def _verify_request(
    work: Work, verify_id: str, seat: verify_pb2.DraftSeat | None
) -> verify_pb2.VerifyServiceGenerateRequest:
    return verify_pb2.VerifyServiceGenerateRequest(
        request_id=verify_id,
        prompt_ids=work.prompt_ids,
        max_tokens=work.max_tokens,
        stop_token_ids=sorted(work.stop_token_ids),
        draft=seat,
        sampling=work.sampling,
        min_tokens=work.min_tokens,
        chunk_stats=bool(work.stop),
    )
