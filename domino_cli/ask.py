"""One prompt to a router, its text passed on as it comes, timed on the client's side."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Unpack

from domino_client import Client, Completion, InternalError, RequestArgs


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """A completion and the client's own times, in seconds from sending the request."""

    completion: Completion
    ttft_s: float
    total_s: float

    @property
    def tokens_per_s(self) -> float:
        """Completion tokens over the whole request, prompt processing included."""
        return self.completion.completion_tokens / self.total_s

    def as_json(self) -> dict[str, Any]:
        """The documented object of `generate --json`."""
        found = asdict(self.completion)
        speculation = self.completion.speculation
        found["speculation"]["acceptance_length"] = speculation.acceptance_length
        found["speculation"]["acceptance_rate"] = speculation.acceptance_rate
        found["timings"]["client_ttft_ms"] = self.ttft_s * 1e3
        found["timings"]["client_total_ms"] = self.total_s * 1e3
        counts = ("prompt_tokens", "completion_tokens")
        found["usage"] = {name: found.pop(name) for name in counts}
        found["tokens_per_s"] = self.tokens_per_s
        return found


def ask(
    client: Client,
    text: str | None,
    on_text: Callable[[str], None],
    **request: Unpack[RequestArgs],
) -> Answer:
    """Streams one answer through `on_text`. Raises ServingError when the router refuses."""
    begin = time.perf_counter()
    first = None
    with client.stream(text, **request) as stream:
        for chunk in stream:
            first = first or time.perf_counter()
            on_text(chunk.text)
        end = time.perf_counter()
        completion = stream.completion
    if first is None:
        raise InternalError("the stream ended without a token")
    return Answer(completion=completion, ttft_s=first - begin, total_s=end - begin)
