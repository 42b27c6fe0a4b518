"""What is exported is what the draft service takes, and what it takes is what was trained."""

import json
import math
from pathlib import Path

import pytest
import torch

from domino_cli.in_process import collect
from serving.draft_config import DominoHead, DraftConfig, LayerAttention
from serving.draft_format import open_draft
from serving.draft_tensors import draft_tensors
from serving.rope_config import Rope
from tests.engines import MODES, engines
from tests.recorded_models import PROMPTS, TARGET
from tests.training import runs, tiny
from training.generate import Generator, Limits
from training.opening import open_session
from training.regenerate import document
from training.speculate import Speculation
from training.start import read_weights


def qwen3(layers: int, hidden: int, inner: int, domino: DominoHead | None) -> DraftConfig:
    """A draft of a published size."""
    return DraftConfig(
        vocab_size=151936,
        hidden_size=hidden,
        intermediate_size=inner,
        num_layers=layers,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        rms_norm_eps=1e-6,
        rope=Rope(kind="default", theta=1e6),
        max_context=4096,
        attention_bias=False,
        output_bias=False,
        mlp_bias=False,
        qk_norm=True,
        format="authors",
        block_size=16,
        target_layer_ids=(1, 9, 17, 25, 33),
        mask_token_id=151669,
        attention=(LayerAttention(),) * layers,
        shift_label=domino is not None,
        domino=domino,
        draft_vocab_size=151936,
    )


@pytest.mark.parametrize(
    ("hidden", "inner", "dflash", "domino"),
    [(4096, 12288, 1_048_626_432, 1_104_561_408), (2560, 9728, 537_427_200, 588_250_368)],
)
def test_sizes_are_the_published_ones(hidden: int, inner: int, dflash: int, domino: int) -> None:
    """A missing projection or a wrong head width is no draft of that name."""
    head = DominoHead(gru_hidden_dim=1024, emb_dim=256)
    for config, size, names in (
        (qwen3(5, hidden, inner, None), dflash, 58),
        (qwen3(5, hidden, inner, head), domino, 62),
    ):
        shapes = draft_tensors(config).values()
        assert sum(torch.Size(s).numel() for s in shapes) == size
        assert len(shapes) == names


def test_export_is_loaded_and_has_the_trained_weights(tmp_path: Path) -> None:
    """An exporter that drops or renames a tensor ships the initial weights (speculators #685)."""
    session = runs.session(tmp_path)
    folder = session.run(lambda _: None)
    target = tiny.target()
    config = open_draft(folder, target.config)[1]
    assert (config.block_size, config.mask_token_id, config.shift_label) == (8, runs.MASK, True)
    stored = read_weights(folder, config)
    for name, weight in session.trainer.masters.items():
        assert torch.equal(stored[name], weight.bfloat16().float()), name
    theta = json.loads((TARGET / "config.json").read_text())["rope_theta"]
    assert config.rope.theta == theta


def test_an_overfit_draft_is_accepted_when_served(tmp_path: Path) -> None:
    """The gate from training to serving: what the trainer calls learnt, the services must accept.
    Trained accuracy with acceptance near 1 is how every misalignment showed (SpecForge #455)."""
    target = tiny.target((1, 2, 3))
    limits = Limits(rows=4, prompt=64, new=40, straggling=0.0)
    answers = Generator(target, limits, stop_ids=[256]).answers(PROMPTS)
    documents = [document(p, a) for p, a in zip(PROMPTS, answers, strict=True)]
    config = runs.config(
        tmp_path,
        **{"steps": 350, "lr": 4e-3, "base_steps": 70, "gru_hidden_dim": 64},
        **{"rows": 2, "row_length": 96, "anchors": 32},
    )
    session = open_session(config, lambda _: None, documents=documents)
    folder = session.run(lambda _: None)
    found = Speculation(target, folder).answers(PROMPTS, width=8, new=40, stops={256})
    least = [math.ceil((len(a) - 1) / 8) for a in answers]  # steps if all proposals were right
    assert sum(len(a.accepted) for a in found) <= 1.2 * sum(least)
    with engines(TARGET, folder) as services:
        for prompt, answer, steps in zip(PROMPTS, answers, least, strict=True):
            events = services.submit(
                prompt, 40, mode=MODES["domino"], draft_tokens=7, stop_ids=[256]
            )
            tokens, complete = collect(events)
            assert tokens == answer
            assert complete.speculation.verify_steps <= steps + 2


def test_layers_copied_from_the_target(tmp_path: Path) -> None:
    """A start from other layers than said, or from another's queries, learns from noise."""
    target = tiny.target()
    session = runs.session(tmp_path, start="target", layers=2)
    for ours, theirs in ((0, 0), (1, target.config.num_layers - 1)):
        for name in ("self_attn.q_proj", "mlp.down_proj", "self_attn.k_norm"):
            stored = session.trainer.masters[f"layers.{ours}.{name}.weight"]
            shape = tuple(stored.shape)
            wanted = f"model.layers.{theirs}.{name}.weight"
            assert torch.equal(stored, target.checkpoint.tensor(wanted, shape, torch.float32))
