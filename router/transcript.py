"""Verify's events of one request in, the client's responses out: ids become text, stop strings cut.

At a stop string text, ids, usage, statistics and times end with the token that completes it;
whatever verify ran beyond it is left out.
"""

from collections.abc import Iterable

from domino_serve.v1 import generate_pb2 as pb
from domino_serve.v1 import speculation_pb2 as spec
from domino_serve.v1 import verify_pb2
from router.admission import Work
from router.detokenize import Detokenizer
from router.stop_strings import StopStrings
from router.tokenizer import Tokenizer
from serving.statistics import count_step


class Transcript:
    """`cut` tells that a stop string ended the completion, so that verify can be stopped too."""

    def __init__(self, tokenizer: Tokenizer, work: Work) -> None:
        self._work = work
        self._detokenizer = Detokenizer(tokenizer)
        self._stops = StopStrings(work.stop)
        self._num_tokens = 0

    @property
    def cut(self) -> bool:
        return self._stops.found is not None

    def add(self, event: verify_pb2.VerifyServiceGenerateResponse) -> list[pb.GenerateResponse]:
        """What the client is to get for one event."""
        if event.HasField("chunk"):
            return self._add_chunk(event.chunk)
        pending = self._stops.finish(self._detokenizer.finish())
        rest = [_chunk(pending, ())] if pending else []
        return [*rest, self._complete(event.complete)]

    def _add_chunk(self, chunk: verify_pb2.VerifyChunk) -> list[pb.GenerateResponse]:
        if not self._work.stop:
            visible = (id_ for id_ in chunk.token_ids if id_ not in self._work.stop_token_ids)
            return [_chunk(self._detokenizer.push(visible), chunk.token_ids)]
        text, kept = "", 0
        for id_ in chunk.token_ids:
            text += self._push(id_)
            kept += 1
            if self.cut:
                break
        response = _chunk(text, chunk.token_ids[:kept])
        return [response, self._complete(self._end(chunk, kept))] if self.cut else [response]

    def _push(self, id_: int) -> str:
        self._num_tokens += 1
        final = self._detokenizer.push(() if id_ in self._work.stop_token_ids else (id_,))
        may_stop = self._num_tokens > self._work.min_tokens
        return self._stops.push(final, self._detokenizer.finish(), may_stop=may_stop)

    def _end(self, chunk: verify_pb2.VerifyChunk, kept: int) -> verify_pb2.VerifyComplete:
        """What verify would say, had it stopped after the chunk's first `kept` tokens."""
        if chunk.HasField("step"):
            count_step(chunk.speculation, chunk.step, kept)
        return verify_pb2.VerifyComplete(
            finish_reason=spec.FINISH_REASON_STOP,
            usage=spec.Usage(
                prompt_tokens=len(self._work.prompt_ids), completion_tokens=self._num_tokens
            ),
            speculation=chunk.speculation,
            timings=chunk.timings,
        )

    def _complete(self, end: verify_pb2.VerifyComplete) -> pb.GenerateResponse:
        complete = pb.GenerateComplete(
            request_id=self._work.request_id,
            finish_reason=end.finish_reason,
            stop_token_id=end.stop_token_id if end.HasField("stop_token_id") else None,
            usage=end.usage,
            speculation=end.speculation,
            timings=end.timings,
            sampling=self._work.sampling,
            stop=self._stops.found,
        )
        return pb.GenerateResponse(complete=complete)


def _chunk(text: str, token_ids: Iterable[int]) -> pb.GenerateResponse:
    return pb.GenerateResponse(chunk=pb.GenerateChunk(text=text, token_ids=token_ids))
