"""The metrics pages of three running services, against what their client was told."""

import time
from collections.abc import Iterator
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from domino_client import BadRequest, Client, Completion
from serving.unused_port import unused_port
from tests.observability.every_instrument import every_instrument
from tests.recorded_models import PROMPTS
from tests.services.whole import whole

SERVICES = ("router", "verify", "draft")
Page = dict[str, dict[tuple[str, ...], float]]


def read(port: int) -> Page:
    """Samples by name and label values."""
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    page: Page = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            page.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    return page


SETTLED = {
    ("router", "domino_router_num_requests_running"): 0,
    ("router", "domino_router_e2e_request_latency_seconds_count"): 3,
    ("verify", "domino_verify_generation_tokens_total"): 90,
    ("verify", "domino_verify_kv_cache_usage_perc"): 0,
    ("draft", "domino_draft_num_sessions"): 0,
}


def await_all_counted(ports: dict[str, int]) -> None:
    """A client has its last token before all that it leads to is counted."""
    deadline = time.monotonic() + 240
    while found := {
        (name, metric): value
        for (name, metric), expected in SETTLED.items()
        if (value := read(ports[name])[metric][()]) != expected
    }:
        assert time.monotonic() < deadline, found


@pytest.fixture(scope="module")
def run(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[dict[str, Page], list[Completion]]]:
    """Pages after two drafted requests, a plain one and a refused one; what the client got."""
    ports = {name: unused_port() for name in SERVICES}
    options = {name: {"metrics_port": port} for name, port in ports.items()}
    folder = tmp_path_factory.mktemp("measured") / "target"
    with (
        whole(folder, **options) as services,
        Client(services.router.address, timeout_s=60) as client,
    ):
        done = [
            client.generate(token_ids=PROMPTS[0], max_tokens=40),
            client.generate(token_ids=PROMPTS[1], max_tokens=40, mode="dflash"),
            client.generate(token_ids=PROMPTS[2], max_tokens=10, mode="ar"),
        ]
        with pytest.raises(BadRequest):
            client.generate(token_ids=[-1])
        await_all_counted(ports)
        yield {name: read(port) for name, port in ports.items()}, done


def test_the_router_tells_what_clients_saw(
    run: tuple[dict[str, Page], list[Completion]],
) -> None:
    """Prevents latencies and token counts that are nobody's."""
    page, done = run[0]["router"], run[1]
    assert page["domino_ready"] == {(): 1}
    assert page["domino_router_num_requests_running"] == {(): 0}
    success = page["domino_router_request_success_total"]
    assert success == {("length", mode): 1 for mode in ("domino", "dflash", "ar")}
    assert page["domino_router_generation_tokens_total"] == {(): 90}
    prompts = sum(completion.prompt_tokens for completion in done)
    assert page["domino_router_prompt_tokens_total"] == {(): prompts}
    failed = {reason: n for (reason,), n in page["domino_requests_failed_total"].items() if n}
    assert failed == {"INVALID_REQUEST": 1}
    for name in ("time_to_first_token", "request_time_per_output_token", "e2e_request_latency"):
        assert page[f"domino_router_{name}_seconds_count"] == {(): 3}


def test_verify_tells_what_speculation_did(
    run: tuple[dict[str, Page], list[Completion]],
) -> None:
    """Prevents acceptance that differs from the requests' own statistics."""
    page, stats = run[0]["verify"], [completion.speculation for completion in run[1]]
    drafted = sum(s.verify_steps - s.plain_steps for s in stats)
    accepted = page["domino_verify_spec_decode_num_accepted_tokens_total"][()]
    proposed = page["domino_verify_spec_decode_num_draft_tokens_total"][()]
    assert page["domino_verify_spec_decode_num_drafts_total"] == {(): drafted}
    assert page["domino_verify_plain_steps_total"] == {(): sum(s.plain_steps for s in stats)}
    assert proposed == sum(s.proposed_tokens for s in stats)
    # Requests count what max_tokens left of their last step, the service what the target accepted.
    kept = sum(s.accepted_tokens for s in stats)
    assert kept <= accepted <= kept + 7 * len(stats)
    by_position = page["domino_verify_spec_decode_num_accepted_tokens_per_pos_total"]
    assert sum(by_position.values()) == accepted
    assert list(by_position.values()) == sorted(by_position.values(), reverse=True)
    assert page["domino_verify_acceptance_length_sum"][()] == accepted + drafted
    assert page["domino_verify_acceptance_length_count"][()] == drafted


def test_verify_tells_where_time_and_memory_go(
    run: tuple[dict[str, Page], list[Completion]],
) -> None:
    """Prevents phases that do not add up to the step, and memory that seems lost."""
    page = run[0]["verify"]
    phases = {
        phase: took for (phase,), took in page["domino_verify_step_phase_seconds_total"].items()
    }
    whole_s = sum(phases[name] for name in ("plan", "verify", "commit", "send", "wait"))
    assert page["domino_verify_step_duration_seconds_sum"][()] == pytest.approx(whole_s)
    steps = page["domino_verify_steps_total"][()]
    assert page["domino_verify_step_duration_seconds_count"][()] == steps
    assert page["domino_verify_generation_tokens_total"][()] == 90
    assert page["domino_verify_prompt_tokens_total"][()] == len(
        [*PROMPTS[0], *PROMPTS[1], *PROMPTS[2]]
    )
    assert page["domino_verify_kv_cache_usage_perc"] == {(): 0}
    assert page["domino_verify_draft_links"] == {("alive",): 1, ("broken",): 0}


def test_the_draft_tells_what_it_did(run: tuple[dict[str, Page], list[Completion]]) -> None:
    """Prevents seats that are lost unseen, and a draft whose load nobody knows."""
    verify, page = run[0]["verify"], run[0]["draft"]
    assert page["domino_draft_streams"] == {(): 1}
    assert page["domino_draft_num_sessions"] == {(): 0}
    assert page["domino_draft_num_seats_reserved"] == {(): 0}
    verified = verify["domino_verify_spec_decode_num_draft_tokens_total"][()]
    assert page["domino_draft_draft_tokens_total"][()] >= verified > 0
    assert page["domino_draft_step_phase_seconds_total"][("backbone",)] > 0
    assert page["domino_draft_stale_drops_total"] == {(): 0}


def test_every_documented_metric_is_on_a_page(
    run: tuple[dict[str, Page], list[Completion]],
) -> None:
    """Prevents a metric that is declared and never connected."""
    shown = {name for page in run[0].values() for name in page}
    quiet = {"domino_draft_session_errors_total", "domino_gpu_memory_bytes"}  # by reason; on GPUs
    missing = {
        name
        for name, instrument in every_instrument().items()
        if name not in shown and f"{name}_count" not in shown
    }
    assert missing == quiet
