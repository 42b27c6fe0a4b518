"""What the router counts and times, by router.meter; docs/observability.md explains each."""

from typing import Final

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
