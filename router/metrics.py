"""What the router counts and times; docs/observability.md explains each."""

import time
from typing import Final

from domino_serve.v1 import generate_pb2 as pb
from domino_serve.v1 import speculation_pb2 as spec
from serving.metrics import FIRST_TOKEN_S, REQUEST_S, TOKEN_S, Counter, Gauge, Histogram

RUNNING: Final = Gauge("domino_router_num_requests_running", "Requests of clients that run")
SUCCESSES: Final = Counter(
    "domino_router_request_success_total",
    "Requests that ran to their end, by finish reason and mode",
    "finished_reason",
    "mode",
)
PROMPT_TOKENS: Final = Counter(
    "domino_router_prompt_tokens_total", "Prompt tokens of requests that ran to their end"
)
GENERATION_TOKENS: Final = Counter(
    "domino_router_generation_tokens_total", "Tokens sent to clients"
)
FIRST_TOKEN: Final = Histogram(
    "domino_router_time_to_first_token_seconds",
    "From a request's arrival until its first token is sent",
    FIRST_TOKEN_S,
)
TOKEN: Final = Histogram(
    "domino_router_request_time_per_output_token_seconds",
    "Of each request, the mean time of a token after the first",
    TOKEN_S,
)
REQUEST: Final = Histogram(
    "domino_router_e2e_request_latency_seconds",
    "From a request's arrival until its last message is sent",
    REQUEST_S,
)
WITHOUT_SEAT: Final = Counter(
    "domino_router_requests_without_seat_total",
    "Requests that wanted a draft seat, got none and ran plain",
)
FAILOVERS: Final = Counter(
    "domino_router_failovers_total",
    "Runs of requests that began anew because a verify service was lost",
)


class RequestMeter:
    """One request's times, from when it is made."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._first = 0.0
        self._tokens = 0

    def sent(self, response: pb.GenerateResponse) -> None:
        """Notes a response that has gone to the client."""
        now = time.monotonic()
        if tokens := len(response.chunk.token_ids):
            GENERATION_TOKENS.inc(by=tokens)
            if not self._tokens:
                self._first = now
                FIRST_TOKEN.observe(now - self._began)
            self._tokens += tokens
        if response.HasField("complete"):
            self._end(response.complete, now)

    def _end(self, end: pb.GenerateComplete, now: float) -> None:
        reason = spec.FinishReason.Name(end.finish_reason).removeprefix("FINISH_REASON_").lower()
        mode = spec.Mode.Name(end.speculation.mode).removeprefix("MODE_").lower()
        SUCCESSES.inc(reason, mode)
        PROMPT_TOKENS.inc(by=end.usage.prompt_tokens)
        REQUEST.observe(now - self._began)
        if self._tokens > 1:
            TOKEN.observe((now - self._first) / (self._tokens - 1))
