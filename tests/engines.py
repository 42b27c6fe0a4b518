"""Engines in one process for tests: real models, and a draft link that knows the right answer."""

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

import draft_service.load
import verify_service.load
from domino_cli.in_process import InProcess
from domino_serve.v1 import draft_pb2
from domino_serve.v1 import speculation_pb2 as spec
from draft_service.config import DraftServiceConfig
from serving.transport.plane import IN_PROCESS
from verify_service.config import VerifyConfig

MODES = {
    **{"ar": spec.MODE_AR, "dflash": spec.MODE_DFLASH},
    **{"domino": spec.MODE_DOMINO, "dspark": spec.MODE_DSPARK},
}


def engines(
    target: Path,
    draft: Path | None,
    *,
    page_size: int = 16,
    threads: int = 1,
    draft_device: str = "cpu",
    int8: bool = True,
    **verify: Any,
) -> InProcess:
    """Both engines on small KV caches; extra options go to the verify service.

    One thread: tiny models spend their time at thread barriers otherwise. A fixed width: steps
    must not follow the clock. int8: of the draft, as the service has it by default.
    """
    options = {"kv_tokens": 2048, "threads": threads, "width_policy": "fixed"} | verify
    loaded = verify_service.load.load(
        VerifyConfig(target=target, draft=draft, page_size=page_size, **options)  # type: ignore[arg-type]
    )
    drafter = None
    if draft:
        config = DraftServiceConfig(
            target=target,
            draft=draft,
            page_size=page_size,
            kv_tokens=8192,
            device=draft_device,
            int8=int8,
        )
        drafter = draft_service.load.load(config)
    return InProcess(loaded, drafter)


class OracleLink:
    """Proposes the continuation `answer` gives for a position, right for a random while.

    Keeps the contract's bookkeeping as a real draft would and fails on any violation of it.
    """

    alive = True
    context_id, late_answers, projection, plane = 0, 0, 0, IN_PROCESS

    def __init__(self, right: Mapping[str, Sequence[int]], vocab: int, seed: int) -> None:
        """right: ticket -> prompt and right continuation."""
        self.max_rows = 64
        self._right, self._vocab, self._random = right, vocab, random.Random(seed)
        self._ticket: dict[int, str] = {}
        self._kv_len: dict[int, int] = {}
        self._request = draft_pb2.StepRequest()
        self.proposed = 0

    def send(self, request: draft_pb2.StepRequest, rows: Tensor | None) -> None:
        assert sum(step.num_rows for step in request.steps) == (0 if rows is None else len(rows))
        self._request = request

    def receive(self, timeout_s: float) -> draft_pb2.StepResponse:
        answer = draft_pb2.StepResponse(sequence_number=self._request.sequence_number)
        for opening in self._request.opens:
            self._kv_len[opening.session] = 0
            self._ticket[opening.session] = opening.ticket
        for step in self._request.steps:
            assert step.rows_start == self._kv_len[step.session], "rows are contiguous"
            self._kv_len[step.session] += step.num_rows
            result = answer.results.add(session=step.session, step=step.step)
            result.proposals.draft_kv_len = self._kv_len[step.session]
            if step.HasField("current"):
                result.proposals.ids.extend(self._propose(step))
        for session in self._request.closes:
            del self._kv_len[session]
        return answer

    def close(self) -> None:
        self.alive = False

    @property
    def open_sessions(self) -> int:
        """Sessions opened and not closed."""
        return len(self._kv_len)

    def _propose(self, step: draft_pb2.SessionStep) -> list[int]:
        right = self._right[self._ticket[step.session]]
        position = self._kv_len[step.session]
        assert right[position] == step.current, "current sits at the draft's committed end"
        block = list(right[position + 1 : position + 1 + step.draft_tokens])
        wrong_at = self._random.randint(0, len(block))
        for place in range(wrong_at, len(block)):
            if place == wrong_at or self._random.random() < 0.5:
                block[place] = self._random.randrange(self._vocab)
        self.proposed += len(block)
        return block
