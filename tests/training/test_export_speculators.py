"""A DFlash draft in the speculators format: what is written, and that both formats draft alike."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from domino_cli.in_process import collect
from serving.draft_format import open_draft
from serving.option_type import OptionError
from tests.engines import MODES, engines
from tests.recorded_models import BLOCK, PROMPTS, TARGET
from tests.training import runs, tiny
from training.errors import TrainingError
from training.evaluate import HeldOut, evaluate
from training.export import export_speculators

NEW, TAPS = 40, (1, 2, 3)


def served_steps(draft: Path) -> int:
    """Verify steps of all prompts through the services."""
    stops = tiny.target().config.eos_token_ids
    found = []
    with engines(TARGET, draft) as services:
        for prompt in PROMPTS:
            events = services.submit(
                prompt, NEW, mode=MODES["dflash"], draft_tokens=BLOCK - 1, stop_ids=stops
            )
            found.append(collect(events)[1].speculation.verify_steps)
    return sum(found)


def test_both_formats_draft_alike_when_served(tmp_path: Path) -> None:
    """Layer ids that count from 0 here and from 1 there: one off only costs acceptance."""
    session = runs.session(tmp_path, head="dflash", format="speculators", steps=60, lr=6e-3)
    folder = session.run(lambda _: None)
    native = session.export(tmp_path / "native")
    config = open_draft(folder, tiny.target().config)[1]
    assert (config.format, config.target_layer_ids, config.shift_label) == (
        "speculators",
        TAPS,
        False,
    )
    written = json.loads((folder / "config.json").read_text())
    assert written["aux_hidden_state_layer_ids"] == [2, 3, 4]
    stored = load_file(folder / "model.safetensors")
    assert torch.equal(stored["embed_tokens.weight"].float(), tiny.target().embedding.bfloat16())
    prompts = [HeldOut("all", list(p)) for p in PROMPTS]
    steps = []
    for draft in (folder, native):
        found = evaluate(tiny.target(TAPS), draft, prompts, width=BLOCK, new=NEW)
        steps.append(served_steps(draft))
        assert found["workloads"]["all"]["verify_steps"] == steps[-1]
    assert steps[0] == steps[1]


def test_heads_are_refused(tmp_path: Path) -> None:
    """The format has no place for a head; without it the draft is another one."""
    with pytest.raises(OptionError, match="format"):
        runs.config(tmp_path, format="speculators")
    session = runs.session(tmp_path)
    with pytest.raises(TrainingError, match="no Domino or DSpark head"):
        masters = session.trainer.masters
        export_speculators(tmp_path / "out", session.draft_json, masters, session.target)
