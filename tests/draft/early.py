"""Steps that a verify service of another process tells early, against the same steps in turn."""

import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from domino_serve.v1 import draft_pb2 as pb
from domino_serve.v1 import speculation_pb2 as spec
from draft_service import early_steps
from draft_service.early_steps import EarlySteps
from draft_service.engine import DraftEngine
from draft_service.executor import StepExecutor
from draft_service.seats import Seats
from serving.transport import segment
from serving.transport.plane import SHM
from serving.transport.receiver import Receiver
from serving.transport.sender import Sender
from serving.transport.shm import MappedShm, OwnShm
from tests.draft.exchange import Peer, append, ids, random_rows, reason, step
from tests.draft.executors import PAGE, PAGES, executors
from tests.recorded_models import HIDDEN
from tests.transport.fake_driver import DEVICE, compiled, in_place

WIDTH, SESSIONS, COUNT = 4, 2, 3
PROMPTS = (9, 1)


def peer_of(executor: StepExecutor) -> Peer:
    """A stream of SESSIONS with their prompts' rows."""
    seats = Seats(pages=PAGES, page_size=PAGE, max_sessions=SESSIONS, ttl_s=60)
    peer = Peer(DraftEngine(executor, seats, max_rows=100))
    steps = [append(s, 1, 0, count) for s, count in enumerate(PROMPTS)]
    opens = [peer.open(s, spec.MODE_DFLASH) for s in range(SESSIONS)]
    peer.exchange(*steps, rows=random_rows(sum(PROMPTS), seed=1), opens=opens)
    return peer


@dataclass
class Both:
    """A draft that is told early, and one that is asked only; `wrong` spoils what is told."""

    early: EarlySteps
    told: Peer
    asked: Peer
    sender: Sender
    number: int = 1
    kept: list[int] = field(default_factory=lambda: list(PROMPTS))
    rng: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(5))

    def tell(self, *, spoil: Tensor | None = None, nan: bool = False) -> pb.StepRequest:
        """Tells a random pass; the message that asks for what follows, whose rows are `rows`."""
        self.number += 1
        accepted = torch.randint(WIDTH, (SESSIONS,), generator=self.rng).tolist()
        current = torch.randint(250, (SESSIONS,), generator=self.rng).tolist()
        rows = random_rows(SESSIONS * WIDTH, seed=self.number)
        if nan:
            rows[0, 3] = torch.nan
        chosen = torch.zeros(SESSIONS, WIDTH + 2, dtype=torch.int32)
        chosen[:, 0], chosen[:, 1] = torch.tensor(accepted), torch.tensor(current)
        request = pb.StepRequest(sequence_number=2 * self.number)
        request.early.MergeFrom(
            pb.EarlyStep(sessions=range(SESSIONS), width=WIDTH, draft_tokens=COUNT)
        )
        assert self.sender.put_early(chosen if spoil is None else spoil, rows, COUNT, request)
        assert self.early.begin(request)
        self.sender.answered(2 * self.number)
        taken = [rows[s * WIDTH : s * WIDTH + a + 1] for s, a in enumerate(accepted)]
        self.rows = torch.cat(taken)
        steps = [
            step(s, self.number, self.kept[s], len(rows), current=current[s], draft_tokens=COUNT)
            for s, rows in enumerate(taken)
        ]
        asks = pb.StepRequest(sequence_number=2 * self.number + 1, steps=steps)
        asks.rows.SetInParent()  # they come beside it
        return asks

    def check(self, request: pb.StepRequest, *, begun: bool) -> pb.StepResponse:
        """What the early draft answers is what the other one does; `begun`: from what it began."""
        before = self.told.engine.loads().early_steps
        answer = self.early.answer(request)
        assert (answer is not None) == begun
        if answer is not None:
            proposed = self.sender.proposed()
            wanted_ids = [ids(result) for result in answer.results]
            assert proposed is not None and proposed.tolist() == wanted_ids
        if answer is None:
            answer = self.told.engine.step(self.told.stream, request, self.rows)
        wanted = self.asked.engine.step(self.asked.stream, request, self.rows)
        assert list(answer.results) == list(wanted.results)
        assert self.told.engine.loads().early_steps - before == SESSIONS * begun
        for result in wanted.results:
            if result.HasField("proposals"):
                self.kept[result.session] = result.proposals.draft_kv_len
        return answer


def check_early() -> None:
    """Raises AssertionError where an answer differs, whatever was told."""
    on_cpu, on_gpu = executors("DFLASH", 0, torch.device("cpu"), SESSIONS, 0)
    with tempfile.TemporaryDirectory() as folder:
        segment.FOLDER = Path(folder)  # type: ignore[misc]
        library = compiled(segment.FOLDER)
        with in_place(library):
            memory, sender = OwnShm(device=DEVICE), Sender()
            receiver = Receiver({SHM: lambda offer: MappedShm(offer, DEVICE)})
            found = receiver.answer(memory.offer())
            assert sender.agree(memory, pb.StepResponse(offer=found)) is None
            told = peer_of(on_gpu)
            early = EarlySteps(
                told.engine, told.stream, receiver, hidden=HIDDEN, dtype=torch.float32
            )
            both = Both(early, told, peer_of(on_cpu), sender)
            _check_passes(both)
            library.fake_run_on()
            early_steps.WRITTEN_S = 0.01  # type: ignore[misc]
            both.check(both.tell(), begun=False)  # a pass that is not seen to end
            sender.close()
            receiver.close()


def _check_passes(both: Both) -> None:
    both.tell()  # a pass whose message never came
    answer = both.check(both.tell(), begun=True)
    assert all(len(ids(result)) == COUNT for result in answer.results)
    other = both.tell()
    other.steps[1].current = (other.steps[1].current + 1) % 250
    both.check(other, begun=False)  # the host chose otherwise
    alone = both.tell()
    alone.steps[0].current = (alone.steps[0].current + 1) % 250
    alone.ClearField("rows")  # left to what began
    refused_all = both.early.answer(alone)
    assert refused_all is not None
    assert {reason(result) for result in refused_all.results} == {"CONTEXT_GAP"}
    spoil = torch.tensor([[1 << 30], [-(1 << 30)]]).expand(SESSIONS, WIDTH + 2).int()
    both.check(both.tell(spoil=spoil), begun=False)
    answer = both.check(both.tell(nan=True), begun=False)
    refused = [result for result in answer.results if result.HasField("error")]
    assert [(result.session, reason(result)) for result in refused] == [(0, "INVALID")]
