"""Sampling defaults out of the target's generation_config.json, only when asked for."""

import json
from pathlib import Path
from typing import Any

import pytest

from domino_client import Client, Sampling
from domino_serve.v1 import sampling_pb2
from router.generation_config import default_sampling
from serving.errors import StartError
from tests.router.fake_services import FakeVerify, served
from tests.router.router_process import running_router
from tests.router.tiny_tokenizer import save_target

QWEN = {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95}


def written(folder: Path, config: object) -> Path:
    (folder / "generation_config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (QWEN, sampling_pb2.Sampling(temperature=0.6, top_k=20, top_p=0.95)),
        ({"do_sample": True}, sampling_pb2.Sampling(temperature=1.0)),
        ({"do_sample": True, "temperature": None}, sampling_pb2.Sampling(temperature=1.0)),
        ({"do_sample": False, "temperature": 0.6}, None),
        ({"temperature": 0.6, "repetition_penalty": 1.0}, None),
        ({"do_sample": True, "top_k": 1}, None),
        ({}, None),
    ],
    ids=str,
)
def test_only_what_the_file_says(
    tmp_path: Path, config: dict[str, Any], expected: sampling_pb2.Sampling | None
) -> None:
    """Prevents defaults of a library (top_k 50) that nobody wrote down."""
    assert default_sampling(written(tmp_path, config)) == expected


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (QWEN | {"repetition_penalty": 1.05}, "repetition_penalty 1.05 is not served"),
        ({"num_beams": 4}, "num_beams 4 is not served"),
        ({"suppress_tokens": [7]}, r"suppress_tokens \[7\] is not served"),
        (QWEN | {"temperature": "hot"}, "temperature 'hot'"),
        (QWEN | {"temperature": True}, "temperature True"),
        (QWEN | {"temperature": -1}, "temperature -1: .*must be from 0"),
        (QWEN | {"top_p": float("nan")}, "top_p nan"),
        (QWEN | {"top_k": 2.5}, "top_k 2.5"),
        ([], "must hold a JSON object"),
    ],
    ids=str,
)
def test_what_cannot_be_honoured_is_refused_at_start(
    tmp_path: Path, config: object, message: str
) -> None:
    """Prevents a penalty that the model's authors rely on from being dropped silently."""
    with pytest.raises(StartError, match=message):
        default_sampling(written(tmp_path, config))


def test_a_missing_file_is_refused_at_start(tmp_path: Path) -> None:
    """Prevents greedy output from a router that was told to sample."""
    with pytest.raises(StartError, match=r"--use-generation-config: .*generation_config\.json"):
        default_sampling(tmp_path)


def test_requests_override_single_fields(tmp_path: Path) -> None:
    """Prevents a request's temperature from being combined with nothing, or not at all."""
    target, verify = written(save_target(tmp_path), QWEN), FakeVerify()
    with (
        served(verify) as address,
        running_router(target, address, "--use-generation-config") as router,
        Client(router, timeout_s=30) as client,
    ):
        default = Sampling(temperature=0.6, top_k=20, top_p=0.95, min_p=0.0, seed=None)
        assert client.model_info().default_sampling == default
        client.generate(token_ids=[9], max_tokens=1, top_k=0, seed=3)
        sent = verify.requests.get(timeout=60).sampling
        expected = sampling_pb2.Sampling(temperature=0.6, top_k=0, top_p=0.95, seed=3)
        assert sent == expected
        assert client.generate(token_ids=[9], max_tokens=1, temperature=0).sampling is None
    with (
        served(verify) as address,
        running_router(target, address) as router,
        Client(router, timeout_s=30) as client,
    ):
        assert client.generate(token_ids=[9], max_tokens=1).sampling is None
