"""The embedded draft on the embedded target, both engines in one process, float32."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from domino_cli.in_process import InProcess, collect
from domino_serve.v1 import speculation_pb2 as spec
from draft_service.config import DraftServiceConfig
from draft_service.load import load as load_draft
from router.tokenizer import Tokenizer
from verify_service.config import VerifyConfig
from verify_service.load import load as load_verify

QUESTIONS = (
    "A baker fills 6 trays with 8 rolls each. She sells 31 rolls in the morning and half of the "
    "rest in the afternoon. How many rolls are left?\nPlease reason step by step.",
    "Tickets cost 12 dollars for adults and 7 dollars for children. A family of 2 adults and 3 "
    "children pays with a 50 dollar note. How much change is due?\nPlease reason step by step.",
)
MAX_TOKENS, DRAFT_TOKENS = 96, 15


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """What a mode answered to all questions."""

    token_ids: list[list[int]]
    acceptance_length: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Embedded:
    """Both engines, and the questions as token ids."""

    engines: InProcess
    prompts: list[list[int]]

    def run(self, mode: spec.Mode.ValueType) -> Found:
        drafts = 0 if mode == spec.MODE_AR else DRAFT_TOKENS
        running = [
            self.engines.submit(ids, MAX_TOKENS, mode=mode, draft_tokens=drafts, stop_ids=[2])
            for ids in self.prompts
        ]
        ended = [collect(events) for events in running]
        steps = sum(complete.speculation.verify_steps for _, complete in ended)
        tokens = sum(complete.speculation.step_tokens for _, complete in ended)
        return Found(token_ids=[ids for ids, _ in ended], acceptance_length=tokens / steps)


@pytest.fixture(scope="module")
def embedded(embedded_target: Path, embedded_draft: Path) -> Iterator[Embedded]:
    verify = load_verify(VerifyConfig(target=embedded_target, draft=embedded_draft, width=4))
    draft = load_draft(DraftServiceConfig(target=embedded_target, draft=embedded_draft))
    tokenizer = Tokenizer.load(embedded_target)
    prompts = [tokenizer.encode_chat([{"role": "user", "content": text}]) for text in QUESTIONS]
    with InProcess(verify, draft) as engines:
        yield Embedded(engines=engines, prompts=prompts)


@pytest.mark.embedded
def test_domino_accepts_more_than_its_base_branch_and_neither_changes_the_answer(
    embedded: Embedded,
) -> None:
    """Prevents a wrong tapped layer, a shifted label or a lost row: output stays right, speed goes.

    The draft's training measured 2.70 for Domino and 2.32 for its base branch on 64 questions of
    this kind at this width, longer answers included. These two give 2.00 and 1.76 here; with every
    tapped layer one too low 1.81 and 1.65, with their order reversed 1.14 and 1.13.
    """
    plain, dflash, domino = (
        embedded.run(mode) for mode in (spec.MODE_AR, spec.MODE_DFLASH, spec.MODE_DOMINO)
    )
    assert plain.acceptance_length == 1.0
    assert dflash.token_ids == plain.token_ids
    assert domino.token_ids == plain.token_ids
    assert dflash.acceptance_length > 1.7
    assert domino.acceptance_length > 1.05 * dflash.acceptance_length
