"""The verify service's own limits: every numeric field at, below and above them, over gRPC."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from domino_serve.v1 import speculation_pb2 as spec
from domino_serve.v1 import verify_pb2
from domino_serve.v1.sampling_pb2 import Sampling
from serving.errors import BadRequest, from_rpc_error
from tests.services.served import Verify, serve_verify
from tests.tiny_models import VOCAB, write_target

CONTEXT = 256
NAN, INF = math.nan, math.inf


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("target")
    write_target("llama", target)
    return target


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[Verify]:
    with serve_verify(None, folder, kv_tokens=2048) as running:
        yield running


def generate(service: Verify, **fields: Any) -> verify_pb2.VerifyComplete:
    values: dict[str, Any] = {"request_id": "r", "prompt_ids": [7], "max_tokens": 3, **fields}
    *_, last = service.stub.Generate(verify_pb2.VerifyServiceGenerateRequest(**values), timeout=60)
    assert service.engine.idle.wait(30)
    complete: verify_pb2.VerifyComplete = last.complete
    return complete


def sampled(**fields: Any) -> Sampling:
    return Sampling(**{"temperature": 1.0, "seed": 1} | fields)


SERVED: list[dict[str, Any]] = [
    {"max_tokens": 1},
    {"max_tokens": CONTEXT - 1, "stop_token_ids": list(range(VOCAB))},
    {"prompt_ids": [0, VOCAB - 1] * 120},
    {"stop_token_ids": [0, VOCAB - 1]},
    {"min_tokens": 0},
    {"min_tokens": 3, "stop_token_ids": list(range(1, VOCAB))},
    {"sampling": Sampling()},
    {"sampling": Sampling(temperature=0)},
    {"sampling": Sampling(temperature=2, top_k=1)},
    *(
        {"sampling": sampled(**field)}
        for field in (
            {"temperature": 1e-300},
            {"temperature": 100},
            {"top_k": 0},
            {"top_k": 2**63 - 1},
            {"top_p": 1e-300},
            {"top_p": 1},
            {"min_p": 0},
            {"min_p": 1},
            {"seed": 0},
            {"seed": 2**63 - 1},
        )
    ),
]


@pytest.mark.parametrize("fields", SERVED, ids=lambda f: str(f)[:60].replace("\n", " "))
def test_limits_themselves_are_served(service: Verify, fields: dict[str, Any]) -> None:
    """Off-by-one limits, and values at which the arithmetic breaks down."""
    done = generate(service, **fields)
    assert done.usage.completion_tokens == fields.get("max_tokens", 3) or (
        done.finish_reason == spec.FINISH_REASON_STOP
    )


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"request_id": ""}, "request_id"),
    ({"prompt_ids": []}, "prompt_ids"),
    ({"prompt_ids": [7, VOCAB]}, "prompt_ids[1]"),
    ({"prompt_ids": [-1]}, "prompt_ids[0]"),
    ({"stop_token_ids": [VOCAB]}, "stop_token_ids[0]"),
    ({"stop_token_ids": list(range(VOCAB)), "min_tokens": 1}, "stop_token_ids"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": CONTEXT}, "max_tokens"),
    ({"max_tokens": 2**63 - 1}, "max_tokens"),
    ({"min_tokens": -1}, "min_tokens"),
    ({"min_tokens": 4}, "min_tokens"),
    ({"sampling": Sampling(temperature=1)}, "sampling.seed"),
    ({"sampling": sampled(seed=-1)}, "sampling.seed"),
    ({"sampling": sampled(temperature=-0.001)}, "sampling.temperature"),
    ({"sampling": sampled(temperature=100.001)}, "sampling.temperature"),
    ({"sampling": sampled(temperature=NAN)}, "sampling.temperature"),
    ({"sampling": sampled(temperature=INF)}, "sampling.temperature"),
    ({"sampling": sampled(top_k=-1)}, "sampling.top_k"),
    ({"sampling": sampled(top_p=0)}, "sampling.top_p"),
    ({"sampling": sampled(top_p=1.001)}, "sampling.top_p"),
    ({"sampling": sampled(top_p=NAN)}, "sampling.top_p"),
    ({"sampling": sampled(min_p=-0.001)}, "sampling.min_p"),
    ({"sampling": sampled(min_p=1.001)}, "sampling.min_p"),
    ({"sampling": sampled(min_p=-INF)}, "sampling.min_p"),
    ({"sampling": Sampling(top_p=NAN)}, "sampling.top_p"),
]


@pytest.mark.parametrize(("fields", "field"), REFUSED, ids=lambda f: str(f)[:60].replace("\n", " "))
def test_beyond_them_the_field_is_named(
    service: Verify, fields: dict[str, Any], field: str
) -> None:
    """A service used without our router must not trust its callers; greedy is no excuse either."""
    with pytest.raises(grpc.RpcError) as caught:
        generate(service, **fields)
    error = from_rpc_error(caught.value)
    assert isinstance(error, BadRequest)
    assert error.field == field
    assert generate(service).usage.completion_tokens == 3


def test_no_request_can_be_larger_than_all_pages(folder: Path) -> None:
    """Pages that hold less than the model's context: routers must know, and cap what they ask."""
    with serve_verify(None, folder, kv_tokens=64) as small:
        assert small.info.max_context == 64
        assert generate(small, max_tokens=63).usage.completion_tokens == 63
        with pytest.raises(grpc.RpcError) as caught:
            generate(small, prompt_ids=[7] * 33, max_tokens=32)
        error = from_rpc_error(caught.value)
        assert "exceed the 64 positions of the context, or --kv-tokens" in str(error)
        assert generate(small).usage.completion_tokens == 3
