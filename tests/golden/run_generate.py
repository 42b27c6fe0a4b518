"""Kind `generate`: the whole greedy loop through both engines, rounds recorded on the link (f2)."""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import dropwhile
from pathlib import Path

import torch
from torch import Tensor

import draft_service.load
import verify_service.load
from domino_cli.in_process import InProcess, collect
from domino_cli.local_link import LocalDraftLink
from domino_serve.v1 import draft_pb2
from domino_serve.v1 import speculation_pb2 as spec
from draft_service.config import DraftServiceConfig
from tests.golden.fixture import TARGET, Fixture
from verify_service.config import VerifyConfig

Tensors = dict[str, Tensor]


class RecordingLink(LocalDraftLink):
    """Keeps every message of the exchange."""

    def __init__(self, link: LocalDraftLink) -> None:
        self.__dict__ |= link.__dict__
        self.exchanges: list[tuple[draft_pb2.StepRequest, draft_pb2.StepResponse]] = []

    def send(self, request: draft_pb2.StepRequest, rows: Tensor | None) -> None:
        super().send(request, rows)
        self._asked = request

    def receive(self, timeout_s: float) -> draft_pb2.StepResponse:
        answer = super().receive(timeout_s)
        self.exchanges.append((self._asked, answer))
        return answer

    def rounds(self) -> tuple[list[list[int]], list[int]]:
        """([current, proposals...] of every drafted step, rows that each of them committed)."""
        steps = [(r.steps[0], a.results[0]) for r, a in self.exchanges if r.steps]
        ids = [[s.current, *a.proposals.ids] for s, a in steps if s.HasField("current")]
        after_prompt = dropwhile(lambda step: not step.HasField("current"), (s for s, _ in steps))
        return ids, [step.num_rows for step in after_prompt][1:]


def run_generate(fixture: Fixture) -> Tensors:
    """Output ids, and per round the verified ids and the tokens committed."""
    domino = fixture.draft()[1].domino is not None
    mode = spec.MODE_DOMINO if domino else spec.MODE_DFLASH
    block = fixture.draft()[1].block_size
    conventions = {"": block - 1}
    if domino:
        conventions = {"specforge.": block - 1, "author.": fixture.draft()[1].max_draft_tokens}
    out = Tensors()
    with _engines(fixture) as engines:
        for case in sorted({name.split(".")[0] for name in fixture.inputs if name[0] == "c"}):
            for convention, tokens in conventions.items():
                out |= _run_case(engines, fixture, case, convention, mode, tokens)
    return out


def _run_case(
    engines: InProcess,
    fixture: Fixture,
    case: str,
    convention: str,
    mode: spec.Mode.ValueType,
    tokens: int,
) -> Tensors:
    inputs = fixture.inputs
    prompt = inputs[f"{case}.prompt"].tolist()
    shared = inputs.get("max_new_tokens")
    limit = int(inputs[f"{case}.max_new_tokens"] if shared is None else shared)
    stops = inputs.get(f"{case}.stop_ids", torch.tensor([])).int().tolist()
    events = engines.submit(prompt, limit, mode=mode, draft_tokens=tokens, stop_ids=stops)
    output, _ = collect(events)
    # A second run goes past the cap, so that the rounds compared are whole ones.
    assert engines.link is not None
    plain = engines.link
    engines.link = recorder = RecordingLink(plain)
    collect(engines.submit(prompt, limit + 2 * tokens, mode=mode, draft_tokens=tokens))
    engines.link = plain
    verified, accepted = recorder.rounds()
    needed = _rounds_needed(accepted, len(output))
    return {
        f"{case}.output": torch.tensor(output),
        f"{case}.{convention}verify_ids": torch.tensor(verified[:needed]),
        f"{case}.{convention}accept_lengths": torch.tensor(accepted[:needed]),
    }


def _rounds_needed(accepted: list[int], emitted: int) -> int:
    """Rounds until so many tokens are out; the first one comes from the prompt."""
    total = 1
    for count, length in enumerate(accepted):
        if total >= emitted:
            return count
        total += length
    return len(accepted)


@contextmanager
def _engines(fixture: Fixture) -> Iterator[InProcess]:
    target = next(p / TARGET for p in fixture.path.parents if (p / TARGET).is_dir())
    with tempfile.TemporaryDirectory() as folder:
        draft = _draft_folder(fixture, Path(folder))
        verify = verify_service.load.load(
            VerifyConfig(
                target=target, draft=draft, page_size=8, kv_tokens=256, width_policy="fixed"
            )
        )
        drafter = draft_service.load.load(
            DraftServiceConfig(target=target, draft=draft, page_size=8, kv_tokens=256, int8=False)
        )
        with InProcess(verify, drafter) as engines:
            yield engines


def _draft_folder(fixture: Fixture, folder: Path) -> Path:
    """The fixture's draft, with the inputs' mask id where they name one."""
    checkpoint, _ = fixture.draft()
    config = checkpoint.config
    if "mask_token_id" in fixture.inputs:
        config["dflash_config"]["mask_token_id"] = int(fixture.inputs["mask_token_id"])
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").symlink_to(checkpoint.path.resolve() / "model.safetensors")
    return folder
