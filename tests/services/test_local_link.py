"""The draft of verify's own process when it is updated: only verify knows that a link has ended."""

import pytest
from torch import Tensor

from domino_cli.in_process import collect
from domino_cli.local_link import LocalDraftLink
from domino_serve.v1 import draft_pb2
from domino_serve.v1 import speculation_pb2 as spec
from draft_service.load import Loaded
from tests.engines import engines
from tests.recorded_models import BLOCK, DOMINO_SHIFT, PROMPTS, TARGET
from verify_service.sequence import DraftPlan

UPDATED_AT = 4  # a message
TOKENS = 60
WAIT_S = 60.0


class UpdatedLink(LocalDraftLink):
    """To a draft that is updated before or after it answers."""

    loaded: Loaded
    before_answer: bool
    count = 0

    def send(self, request: draft_pb2.StepRequest, rows: Tensor | None) -> None:
        self.count += 1
        super().send(request, rows)

    def receive(self, timeout_s: float) -> draft_pb2.StepResponse:
        if self.before_answer:
            self._update()
            return super().receive(timeout_s)
        answer = super().receive(timeout_s)
        self._update()
        return answer

    def _update(self) -> None:
        if self.count == UPDATED_AT:
            self.engine.replace(self.loaded.weights.network)


@pytest.mark.parametrize("before_answer", [True, False])
def test_an_update_takes_no_seat_for_good(before_answer: bool) -> None:
    """Prevents a draft that is full after some updates: what a link without a stream holds is freed
    by verify alone."""
    both = engines(TARGET, DOMINO_SHIFT)
    loaded, greeting = both._draft, both.link
    assert loaded and greeting
    link = UpdatedLink(loaded.engine, greeting.max_rows)
    link.loaded, link.before_answer = loaded, before_answer
    ticket = loaded.engine.reserve(spec.MODE_DOMINO, len(PROMPTS[0]) + TOKENS)
    plan = DraftPlan(link=link, ticket=ticket, mode=spec.MODE_DOMINO, draft_tokens=BLOCK - 1)
    with both:
        plain, _ = collect(both.submit(PROMPTS[0], TOKENS))
        ids, done = collect(both.submit(PROMPTS[0], TOKENS, plan=plan))
        assert both.engine.idle.wait(WAIT_S)
    assert ids == plain
    assert done.speculation.proposed_tokens > 0
    loads = loaded.engine.loads()
    assert (link.count, loads.sessions, loads.kv_pages_used) == (UPDATED_AT, 0, 0)
