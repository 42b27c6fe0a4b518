"""The router's RPCs, called on a running router whose verify service only counts."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import grpc

from domino_serve.v1 import generate_pb2 as pb
from domino_serve.v1.generate_pb2_grpc import GenerateServiceStub
from serving.channel import channel
from tests.fuzz.calls import ALLOWED, EVENTS, HANG_S, Outcome
from tests.fuzz.messages import Fuzzer
from tests.fuzz.targets import Target
from tests.router.fake_services import FakeDraft, FakeVerify, served
from tests.router.router_process import running_router
from tests.router.tiny_tokenizer import save_target

AT_ONCE: Final = 8


@contextmanager
def front(folder: Path) -> Iterator[list[Target]]:
    """Its targets while it runs."""
    target = save_target(folder / "counter")
    with ExitStack() as stack:
        verify = stack.enter_context(served(FakeVerify()))
        draft = stack.enter_context(served(FakeDraft()))
        address = stack.enter_context(running_router(target, verify, "--draft", draft))
        stub = GenerateServiceStub(stack.enter_context(channel(address)))
        chat = pb.ChatPrompt(messages=[pb.ChatMessage(role="user", content="fox")])
        common: dict[str, Any] = {"max_tokens": 3, "stop_token_ids": [20], "stop": ["no"]}
        prompts: list[dict[str, Any]] = [
            {"text": "the quick", "temperature": 0.5, "seed": 1},
            {"chat": chat, "mode": 3, "draft_tokens": 2, "min_tokens": 1},
            {"token_ids": pb.TokenIds(ids=[9]), "top_k": 3, "top_p": 0.5, "min_p": 0.1},
        ]
        seeds = [pb.GenerateRequest(**common, **prompt) for prompt in prompts]
        yield [
            _remote("GenerateService.Generate", stub.Generate, seeds),
            _remote("GenerateService.Abort", stub.Abort, [pb.AbortRequest(request_id="x")]),
            _remote("GenerateService.GetModelInfo", stub.GetModelInfo, [pb.GetModelInfoRequest()]),
        ]


def _remote(name: str, method: Any, seeds: list[Any]) -> Target:
    def run(fuzzer: Fuzzer, count: int) -> Iterator[tuple[int, Outcome]]:
        lock = threading.Lock()

        def one(_: int) -> tuple[int, Outcome]:
            with lock:
                seed = fuzzer.rng.choice(seeds)
                spoil = fuzzer.rng.random() < 0.75
                request = fuzzer.spoiled(seed) if spoil else fuzzer.invented(type(seed))
            return 1, _call(method, request)

        with ThreadPoolExecutor(AT_ONCE) as pool:
            yield from pool.map(one, range(count))

    return Target(name, run)


def _call(method: Any, request: Any) -> Outcome:
    began = time.monotonic()
    try:
        answer = method(request, timeout=HANG_S)
        if hasattr(answer, "cancel"):
            for _, _ in zip(range(EVENTS), answer, strict=False):
                pass
            answer.cancel()
        return Outcome("OK")
    except grpc.RpcError as error:
        code = error.code()
        hung = time.monotonic() - began >= HANG_S
        fine = code in ALLOWED and not hung
        return Outcome(code.name, "" if fine else f"{code.name}: {error.details()}")
