"""GenerateService: admit, run on verify groups, turn committed ids into text."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import grpc

from domino_serve.v1 import generate_pb2 as pb
from domino_serve.v1 import verify_pb2
from domino_serve.v1.generate_pb2_grpc import GenerateServiceServicer
from router.admission import Admission, Work
from router.callers import CALLER
from router.failover import Course, Failover
from router.meter import RequestMeter
from router.metrics import RUNNING
from router.tokenizer import Tokenizer
from router.transcript import Transcript
from serving.errors import BadRequest, Overloaded
from serving.guard import aio_guard
from serving.trace import parent_of

Context = grpc.aio.ServicerContext[Any, Any]

_MAX_NAME: Final = 200


class GenerateServicer(GenerateServiceServicer):
    def __init__(
        self,
        *,
        model: pb.GetModelInfoResponse,
        admission: Admission,
        tokenizer: Tokenizer,
        failover: Failover,
        max_requests: int,
    ) -> None:
        self._model = model
        self._admission = admission
        self._tokenizer = tokenizer
        self._failover = failover
        self._max_requests = max_requests
        self._running: dict[tuple[str, str], Course] = {}  # by caller and request id
        RUNNING.watch(lambda: len(self._running))

    # Writes instead of yielding: a cancelled handler must end inside its own `finally` blocks,
    # not whenever an abandoned generator is collected.
    async def Generate(  # type: ignore[override]
        self, request: pb.GenerateRequest, context: Context
    ) -> None:
        async with aio_guard(context):
            request_id = _name(request)
            meter = RequestMeter(request_id, parent_of(context))
            course = self._failover.begin(context.time_remaining)
            with meter, self._registered(request_id, course):
                work = await self._admission.admit(request_id, request)
                await self._follow(course, work, context, meter)

    async def Abort(self, request: pb.AbortRequest, context: Context) -> pb.AbortResponse:
        async with aio_guard(context):
            course = self._running.get((CALLER.get().name, request.request_id))
            if course:
                await course.abort()
        return pb.AbortResponse(found=course is not None)

    async def GetModelInfo(
        self, request: pb.GetModelInfoRequest, context: Context
    ) -> pb.GetModelInfoResponse:
        return self._model

    async def _follow(
        self, course: Course, work: Work, context: Context, meter: RequestMeter
    ) -> None:
        transcript = Transcript(self._tokenizer, work)

        async def deliver(event: verify_pb2.VerifyServiceGenerateResponse) -> bool:
            for response in transcript.add(event):
                await context.write(response)
                meter.sent(response)
            return not transcript.cut

        await course.follow(work, deliver)

    @contextmanager
    def _registered(self, request_id: str, course: Course) -> Iterator[None]:
        """Holds one of the places, under the caller's and the request's name."""
        caller = CALLER.get()
        key = caller.name, request_id
        if key in self._running:
            raise BadRequest("request_id", f"{request_id!r} is running already; ids are unique")
        if len(self._running) >= self._max_requests:
            raise Overloaded(
                f"{self._max_requests} requests are running, the most this router takes"
            )
        own = sum(name == caller.name for name, _ in self._running)
        if caller.max_requests is not None and own >= caller.max_requests:
            raise Overloaded(f"{own} requests of {caller.name} are running, the most it may have")
        self._running[key] = course
        try:
            yield
        finally:
            del self._running[key]


def _name(request: pb.GenerateRequest) -> str:
    """The client's, else a new one; raises BadRequest for one that logs could not show."""
    name = request.request_id or uuid.uuid4().hex
    if len(name) > _MAX_NAME or not name.isprintable():
        raise BadRequest("request_id", f"must be at most {_MAX_NAME} printable characters")
    return name
