"""Stop strings and sampling through the real router process, in front of a counting verify."""

import pytest

from domino_serve.v1 import generate_pb2 as pb
from domino_serve.v1.generate_pb2_grpc import GenerateServiceStub
from serving.channel import channel
from tests.router.fake_services import HANG
from tests.router.services import Services
from tests.router.tiny_tokenizer import byte_level

MODEL = byte_level()


def test_a_stop_string_ends_text_ids_usage_and_statistics_together(services: Services) -> None:
    """Prevents counts of tokens that the client never saw, and a target that works on."""
    stop = MODEL.decode([74, 75])
    stream = services.client.stream(token_ids=[69], max_tokens=40, stop=["nowhere", stop])
    chunks = list(stream)
    done = stream.completion
    assert "".join(chunk.text for chunk in chunks) == MODEL.decode([70, 71, 72, 73])
    assert done.token_ids == (70, 71, 72, 73, 74, 75)
    assert (done.finish_reason, done.stop, done.stop_token_id) == ("stop", stop, None)
    assert (done.prompt_tokens, done.completion_tokens) == (1, 6)
    assert done.speculation.verify_steps == 3
    assert done.speculation.step_tokens == 6
    assert done.timings.total_ns == 3
    services.await_abort(services.verify.requests.get(timeout=60).request_id)


def test_a_stop_string_ends_inside_a_step(services: Services) -> None:
    """Prevents the rest of a block from being counted or sent."""
    done = services.client.generate(token_ids=[69], max_tokens=40, stop=MODEL.decode([74]))
    assert done.token_ids == (70, 71, 72, 73, 74)
    assert (done.completion_tokens, done.speculation.step_tokens) == (5, 5)
    assert done.speculation.accepted_tokens == 3


def test_a_client_does_not_wait_for_a_verify_that_hangs(services: Services) -> None:
    """Prevents an end that comes only with verify's next step."""
    stop = [MODEL.decode([HANG + 1])]
    done = services.client.generate(token_ids=[HANG], max_tokens=9, stop=stop)
    assert (done.text, done.token_ids, done.finish_reason) == ("", (HANG + 1,), "stop")
    services.await_abort(services.verify.requests.get(timeout=60).request_id)


@pytest.mark.parametrize(
    ("ends", "reason", "count"),
    [
        ({"stop_token_ids": [75], "max_tokens": 40}, "stop", 5),
        ({"stop_token_ids": [74], "max_tokens": 40}, "stop id", 5),
        ({"stop_token_ids": [73], "max_tokens": 40}, "stop id", 4),
        ({"max_tokens": 5}, "stop", 5),
        ({"max_tokens": 4}, "length", 4),
        ({"max_tokens": 40, "min_tokens": 4}, "stop", 5),
        ({"max_tokens": 40, "min_tokens": 5}, "length", 40),
    ],
    ids=str,
)
def test_the_first_end_in_token_order_counts(
    services: Services, ends: dict[str, int], reason: str, count: int
) -> None:
    """Prevents a cap that hides an earlier stop, and a stop beyond the cap."""
    stop = MODEL.decode([74])
    done = services.client.generate(token_ids=[69], stop=[stop], **ends)  # type: ignore[arg-type]
    assert (done.finish_reason, done.completion_tokens) == (reason.split()[0], count)
    assert len(done.token_ids) == count
    assert done.stop == (stop if reason == "stop" else None)
    assert (done.stop_token_id is not None) == (reason == "stop id")


def test_statistics_are_asked_for_only_with_stop_strings(services: Services) -> None:
    """Prevents every chunk of every request from carrying what nobody reads."""
    services.client.generate(token_ids=[69], max_tokens=1)
    services.client.generate(token_ids=[69], max_tokens=1, stop=["x"])
    plain, cut = (services.verify.requests.get(timeout=60) for _ in range(2))
    assert (plain.chunk_stats, cut.chunk_stats) == (False, True)


def test_sampling_travels_to_verify_and_back(services: Services) -> None:
    """Prevents settings that are taken and ignored."""
    settings = {"temperature": 0.7, "top_k": 5, "top_p": 0.9, "min_p": 0.05, "seed": 2**63 - 1}
    done = services.client.generate(token_ids=[69], max_tokens=3, min_tokens=2, **settings)  # type: ignore[arg-type]
    request = services.verify.requests.get(timeout=60)
    assert {name: getattr(request.sampling, name) for name in settings} == settings
    assert request.min_tokens == 2
    assert done.sampling is not None
    assert {name: getattr(done.sampling, name) for name in settings} == settings


def test_an_unseeded_request_is_told_its_seed(services: Services) -> None:
    """Prevents completions that nobody can reproduce, and one seed for all."""
    seeds = set()
    for _ in range(3):
        done = services.client.generate(token_ids=[69], max_tokens=1, temperature=1.0)
        sent = services.verify.requests.get(timeout=60).sampling.seed
        assert done.sampling is not None and done.sampling.seed == sent
        seeds.add(sent)
    assert len(seeds) == 3


@pytest.mark.parametrize("args", [{}, {"temperature": 0, "seed": 1}, {"top_p": 0.5}], ids=str)
def test_greedy_is_the_default(services: Services, args: dict[str, float]) -> None:
    """Prevents random output that nobody asked for."""
    done = services.client.generate(token_ids=[69], max_tokens=1, **args)  # type: ignore[arg-type]
    assert not services.verify.requests.get(timeout=60).HasField("sampling")
    assert done.sampling is None


AT_THE_LIMIT: dict[str, list[object]] = {
    "temperature": [0.0, 1e-300, 100.0],
    "top_k": [0, 1, 2**63 - 1],
    "top_p": [1e-300, 1.0],
    "min_p": [0.0, 1.0],
    "seed": [0, 2**63 - 1],
    "max_tokens": [1, 2**63 - 1],
    "min_tokens": [0, 63],
    "draft_tokens": [0, 7],
    "stop_token_ids": [[0], [319], [1] * 1024],
    "stop": [[], ["x"], ["\0" * 256] * 16],
}


@pytest.mark.parametrize("field", AT_THE_LIMIT)
def test_values_at_their_limits_are_served(services: Services, field: str) -> None:
    """Prevents limits that are off by one; beyond them see test_refusals."""
    with channel(services.address) as calls:
        stub = GenerateServiceStub(calls)
        for value in AT_THE_LIMIT[field]:
            request = pb.GenerateRequest(token_ids=pb.TokenIds(ids=[9]), temperature=1.0)
            request.MergeFrom(pb.GenerateRequest(**{field: value}))  # type: ignore[arg-type]
            *_, last = stub.Generate(request, timeout=30)
            assert last.HasField("complete"), value
