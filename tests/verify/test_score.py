"""Score, GetLoads and FlushCache over gRPC, with transformers as the oracle of what is said."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch

from domino_serve.v1 import draft_pb2, verify_pb2
from domino_serve.v1 import speculation_pb2 as spec
from domino_serve.v1.sampling_pb2 import Sampling
from serving.errors import BadRequest, Draining, Overloaded, from_rpc_error
from tests.services.served import Verify, serve_draft, serve_verify
from tests.standing_still import standing_still
from tests.tiny_models import VOCAB, write_target

PROMPT = [17, 4, 99, 4, 61, 2, 30]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """(folder, transformers' model)."""
    folder = tmp_path_factory.mktemp("target")
    return folder, write_target("qwen3", folder)


@pytest.fixture(scope="module")
def service(model: tuple[Path, Any]) -> Iterator[Verify]:
    with serve_verify(None, model[0], kv_tokens=2048, prefill_tokens=16) as running:
        yield running


def score(
    service: Verify, prompt: list[int], blocks: list[list[int]], **more: Any
) -> verify_pb2.ScoreResponse:
    request = verify_pb2.ScoreRequest(
        prompt_ids=prompt, blocks=[verify_pb2.Block(ids=ids) for ids in blocks], **more
    )
    answer: verify_pb2.ScoreResponse = service.stub.Score(request, timeout=60)
    return answer


def generate(service: Verify, count: int, prompt: list[int] = PROMPT, **more: Any) -> list[int]:
    request = verify_pb2.VerifyServiceGenerateRequest(
        request_id=f"generate-{threading.get_ident()}",
        prompt_ids=prompt,
        max_tokens=count,
        **more,
    )
    events = service.stub.Generate(request, timeout=60)
    return [i for event in events if event.HasField("chunk") for i in event.chunk.token_ids]


@pytest.mark.parametrize("length", [1, 2, 7, 40])
def test_choices_and_logprobs_equal_transformers(
    service: Verify, model: tuple[Path, Any], length: int
) -> None:
    """A row too early or late, or KV of another block, shows in the choices and their odds."""
    prompt = [(31 * i + 7) % VOCAB for i in range(length)]
    blocks = [[5, 6, 7, 8, 9], [], [90], list(range(64))]
    answer = score(service, prompt, blocks, logprobs=True)
    for block, found in zip(blocks, answer.scores, strict=True):
        with torch.inference_mode():
            logits = model[1](torch.tensor([prompt + block])).logits[0, length - 1 :]
        expected = logits.log_softmax(-1)
        assert list(found.choices) == logits.argmax(-1).tolist()
        chosen = expected.max(-1).values
        assert torch.allclose(torch.tensor(found.choice_logprobs), chosen, atol=1e-4)
        own = [float(expected[j, i]) for j, i in enumerate(block)]
        assert list(found.id_logprobs) == pytest.approx(own, abs=1e-4)
    assert answer.timings.verify_ns > 0


def test_blocks_are_accepted_as_far_as_generate_would_go(service: Verify) -> None:
    """An acceptance that differs from the engine's own would make Score a second truth."""
    right = generate(service, 12)
    wrong_at = [[*right[:n], (right[n] + 1) % VOCAB, *right[n + 1 :]] for n in range(12)]
    answer = score(service, PROMPT, [right, *wrong_at])
    assert [s.accepted_tokens for s in answer.scores] == [12, *range(12)]
    for n, found in enumerate(answer.scores[1:]):
        assert list(found.choices[: n + 1]) == right[: n + 1]
        assert not found.choice_logprobs, "not asked for"


def test_a_sampled_block_is_scored_as_generate_samples(service: Verify) -> None:
    """Seeds and positions have to mean the same to whoever verifies from outside."""
    sampling = Sampling(temperature=0.8, top_p=0.9, seed=5)
    right = generate(service, 10, sampling=sampling)
    assert right != generate(service, 10)
    (found,) = score(service, PROMPT, [right], sampling=sampling).scores
    assert (found.accepted_tokens, list(found.choices[:10])) == (10, right)


def test_scores_join_the_running_batch(service: Verify) -> None:
    """Scoring between the steps of running requests must not touch their KV."""
    alone = generate(service, 60)
    expected = score(service, PROMPT, [alone[:8]] * 9)
    others: list[list[int]] = []
    thread = threading.Thread(target=lambda: others.append(generate(service, 60)))
    thread.start()
    together = [score(service, PROMPT, [alone[:8]] * 9).scores for _ in range(3)]
    thread.join()
    assert others == [alone]
    assert together == [expected.scores] * 3


def test_preempted_scores_say_the_same(model: tuple[Path, Any]) -> None:
    """Scores that lose their pages prefill the prompt again and go on with the next block."""
    with serve_verify(None, model[0], page_size=8, kv_tokens=64) as service:
        prompts = [[(7 * i + n) % VOCAB for n in range(20 + i)] for i in range(4)]
        blocks = [[5] * size for size in range(12)]
        alone = [score(service, prompt, blocks, logprobs=True).scores for prompt in prompts]
        with standing_still(service.engine, after=0):
            calls = [
                service.stub.Score.future(
                    verify_pb2.ScoreRequest(
                        prompt_ids=prompt,
                        blocks=[verify_pb2.Block(ids=ids) for ids in blocks],
                        logprobs=True,
                    )
                )
                for prompt in prompts
            ]
            while service.engine.num_live() < len(prompts):
                time.sleep(0.01)
        assert [call.result(timeout=60).scores for call in calls] == alone
        assert service.engine.scheduler.num_preempted > 0, "nobody was preempted: nothing tested"


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no prompt": ({"prompt": []}, "prompt_ids"),
    "id too large": ({"prompt": [VOCAB]}, "prompt_ids[0]"),
    "no blocks": ({"blocks": []}, "blocks"),
    "65 blocks": ({"blocks": [[1]] * 65}, "blocks"),
    "65 ids": ({"blocks": [[], [1] * 65]}, "blocks[1].ids"),
    "negative id": ({"blocks": [[1, -1]]}, "blocks[0].ids[1]"),
    "beyond the context": ({"prompt": [1] * 250, "blocks": [[1] * 7]}, "blocks[0].ids"),
    "no seed": ({"sampling": Sampling(temperature=1)}, "sampling.seed"),
    "bad top_p": ({"sampling": Sampling(top_p=0)}, "sampling.top_p"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_scores_are_refused_by_name(service: Verify, name: str) -> None:
    """A service used by itself has no router in front that checks."""
    args, field = REFUSED[name]
    with pytest.raises(grpc.RpcError) as caught:
        score(service, **{"prompt": PROMPT, "blocks": [[1]], **args})
    error = from_rpc_error(caught.value)
    assert isinstance(error, BadRequest)
    assert error.field == field


def test_a_full_or_ending_service_refuses_scores(model: tuple[Path, Any]) -> None:
    """Scores take the queue's places like any request; none may wait for ever."""
    with serve_verify(None, model[0], max_sequences=1, max_waiting=0, kv_tokens=64) as service:
        long = verify_pb2.VerifyServiceGenerateRequest(
            request_id="long", prompt_ids=[1], max_tokens=60
        )
        running = service.stub.Generate(long)
        with standing_still(service.engine):
            next(running)
            with pytest.raises(grpc.RpcError) as full:
                score(service, PROMPT, [[1]])
            running.cancel()
        assert isinstance(from_rpc_error(full.value), Overloaded)
        assert service.engine.idle.wait(30)
        with pytest.raises(grpc.RpcError) as large:
            score(service, [1] * 20, [[1] * 60])
        assert "blocks[0].ids: ends beyond the 64 positions" in str(from_rpc_error(large.value))
        service.draining.set()
        with pytest.raises(grpc.RpcError) as ending:
            score(service, PROMPT, [[1]])
        assert isinstance(from_rpc_error(ending.value), Draining)


def test_a_caller_that_leaves_ends_its_scores(service: Verify) -> None:
    """Abandoned scores would hold a place in the batch for all their blocks."""
    request = verify_pb2.ScoreRequest(
        prompt_ids=[1] * 180, blocks=[verify_pb2.Block(ids=[1] * 64)] * 64
    )
    with standing_still(service.engine) as until_it_stands:
        call = service.stub.Score.future(request, timeout=60)
        until_it_stands()
        assert service.stub.GetLoads(verify_pb2.GetLoadsRequest()).running
        call.cancel()
    assert service.engine.idle.wait(30)
    assert score(service, PROMPT, [[]]).scores


def test_loads_are_the_moments_figures(service: Verify) -> None:
    """A balancer that reads 0 where a batch runs sends everything here."""
    request = verify_pb2.VerifyServiceGenerateRequest(
        request_id="load", prompt_ids=PROMPT, max_tokens=100
    )
    with standing_still(service.engine):
        running = service.stub.Generate(request)
        next(running)
        busy = service.stub.GetLoads(verify_pb2.GetLoadsRequest())
        flushed = service.stub.FlushCache(verify_pb2.FlushCacheRequest())
    assert (busy.running, busy.waiting, busy.page_size) == (1, 0, 16)
    assert (busy.kv_pages_used, busy.kv_pages_total) == (7, 128)  # 7 + 100 + 1 positions
    assert flushed.freed_pages == 0
    assert sum(len(event.chunk.token_ids) for event in running) == 99
    assert service.engine.idle.wait(30)
    idle = service.stub.GetLoads(verify_pb2.GetLoadsRequest())
    assert (idle.running, idle.waiting, idle.kv_pages_used) == (0, 0, 0)


def test_loads_show_the_draft_links() -> None:
    """A draft that broke, or drafts for nobody, must be visible from outside."""
    with serve_draft() as draft, serve_verify() as service:
        ask = verify_pb2.GetLoadsRequest()
        assert not service.stub.GetLoads(ask).draft_links
        seat = draft.stub.ReserveSeat(
            draft_pb2.ReserveSeatRequest(mode=spec.MODE_DOMINO, max_positions=200)
        )
        request = verify_pb2.VerifyServiceGenerateRequest(
            request_id="drafted",
            prompt_ids=PROMPT,
            max_tokens=190,
            draft=verify_pb2.DraftSeat(
                address=draft.address, ticket=seat.ticket, mode=spec.MODE_DOMINO, draft_tokens=1
            ),
        )
        with standing_still(service.engine):
            events = service.stub.Generate(request)
            next(events)
            (link,) = service.stub.GetLoads(ask).draft_links
            assert (link.address, link.alive, link.sessions) == (draft.address, True, 1)
            draft.stop()
        assert sum(len(event.chunk.token_ids) for event in events) == 189
        (link,) = service.stub.GetLoads(ask).draft_links
        assert (link.address, link.alive, link.sessions) == (draft.address, False, 0)
