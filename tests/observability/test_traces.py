"""Traces through three processes into a collector: one tree a request, and no text in it."""

import threading
from pathlib import Path

import pytest

from domino_client import BadRequest, Client
from domino_serve.v1 import generate_pb2 as pb
from domino_serve.v1.generate_pb2_grpc import GenerateServiceStub
from serving import trace
from serving.channel import channel
from serving.options import OptionError
from tests.observability.collector import collecting
from tests.services.whole import whole

SECRET = "my PIN is 4711"
CLIENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"  # of the W3C's text


def test_one_trace_leads_from_the_client_to_the_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prevents spans that cannot be joined, or that tell what a request said."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "60")
    with (
        collecting() as collector,
        whole(tmp_path / "target", common={"trace_endpoint": collector.endpoint}) as services,
        channel(services.router.address) as calls,
    ):
        request = pb.GenerateRequest(
            text=SECRET, max_tokens=20, request_id="traced", ignore_eos=True
        )
        stub = GenerateServiceStub(calls)
        list(stub.Generate(request, timeout=60, metadata=(("traceparent", CLIENT),)))
        with Client(services.router.address, timeout_s=60) as client:
            client.generate(SECRET, max_tokens=4, mode="ar", request_id="plain")
            with pytest.raises(BadRequest):
                client.generate(SECRET, max_tokens=0, request_id="refused")
        # Ending the services sends what they have not sent yet.
        for process in (services.router, services.verify, services.draft):
            process.service.stop(240)
        spans = {(s.service, s.attributes["request_id"].split("-")[0]): s for s in collector.spans}
    router = spans["domino-router", "traced"]
    verify = spans["domino-verify", "traced"]
    draft = spans["domino-draft", "traced"]
    assert (router.trace_id, router.parent_id) == (CLIENT[3:35], CLIENT[36:52])
    assert (verify.trace_id, verify.parent_id) == (router.trace_id, router.span_id)
    assert (draft.trace_id, draft.parent_id) == (router.trace_id, verify.span_id)
    assert router.attributes["completion_tokens"] == verify.attributes["completion_tokens"] == 20
    assert draft.attributes["draft_tokens"] > 0 and draft.attributes["steps"] > 0
    assert verify.attributes["verify_steps"] > 0
    assert ("domino-draft", "plain") not in spans
    assert spans["domino-verify", "plain"].trace_id != router.trace_id
    assert spans["domino-router", "refused"].attributes["error.type"] == "INVALID_REQUEST"
    assert "4711" not in str(spans)


class Calling:
    """A call's context with one header."""

    def __init__(self, value: str) -> None:
        self._value = value

    def invocation_metadata(self) -> list[tuple[str, str]]:
        return [("traceparent", self._value)]


def test_a_tracer_that_is_set_aside_sends_its_spans_and_ends() -> None:
    """Its thread went on sending to a collector that was gone, beside whatever ran then."""
    with collecting() as collector:
        before = set(threading.enumerate())
        trace.set_up_traces("router", collector.endpoint)
        own = set(threading.enumerate()) - before
        assert own
        trace.Span("request").end()
        trace.set_up_traces("router", None)
        assert [span.name for span in collector.spans] == ["request"]
        assert not any(thread.is_alive() for thread in own)


@pytest.mark.parametrize("sent", ["", "garbage", "00-" + "0" * 32 + "-" + "0" * 16 + "-01"])
def test_a_bad_parent_begins_a_trace(sent: str) -> None:
    """Prevents a request that fails for a header nobody needs."""
    with collecting() as collector:
        trace.set_up_traces("router", collector.endpoint)
        try:
            with trace.Span("request", trace.parent_of(Calling(sent))) as span:
                assert len(span.trace_id) == 32 and span.trace_id != "0" * 32
        finally:
            trace.set_up_traces("router", None)


def test_off_by_default_and_refused_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prevents a collector that is needed to start, and a typo that traces nothing unnoticed."""
    with trace.Span("request") as span:
        span.set(completion_tokens=1)
    assert (span.traceparent, trace.are_on()) == ("", False)
    with pytest.raises(OptionError, match="must begin with http://"):
        trace.set_up_traces("router", "localhost:4317")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(OptionError, match="domino-serve\\[otel\\]"):
        trace.set_up_traces("router", "http://localhost:4317")


def test_a_collector_that_is_away_costs_nothing(tmp_path: Path) -> None:
    """Prevents requests that wait for, or fail with, whoever collects traces."""
    with (
        whole(tmp_path / "target", common={"trace_endpoint": "http://127.0.0.1:1"}) as services,
        Client(services.router.address, timeout_s=60) as client,
    ):
        assert client.generate("ab", max_tokens=20, ignore_eos=True).completion_tokens == 20
