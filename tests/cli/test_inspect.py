"""`domino-serve inspect`: what was understood, or one line and exit code 1."""

import json
from pathlib import Path
from typing import Any

import pytest

from domino_cli.__main__ import main

GOLDEN = Path(__file__).parent.parent / "golden"
BASE = GOLDEN / "f8_configs" / "base"
# What Qwen/Qwen3-8B's config.json says of the target's sizes.
QWEN3_8B = {
    "model_type": "qwen3",
    "vocab_size": 151936,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": False,
    "eos_token_id": 151645,
}
FACTS: dict[str, dict[str, Any]] = {
    "Qwen3-8B-DFlash-b16": {
        "target_layer_ids": [1, 9, 17, 25, 33],
        "block_size": 16,
        "max_draft_tokens": 15,
        "domino": None,
        "max_context": 40960,
        "mask_token_id": 151669,
    },
    "Qwen3-8B-Domino-b16": {
        "target_layer_ids": [1, 9, 17, 25, 33],
        "max_draft_tokens": 16,
        "shift_label": True,
        "domino": {"gru_hidden_dim": 1024, "emb_dim": 256},
    },
    "Qwen3.6-27B-DFlash": {
        "target_layer_ids": [1, 16, 31, 46, 61],
        "max_context": 262144,
        "attention": [{"causal": True, "window": 2048, "window_moves": True}] * 4
        + [{"causal": False, "window": None, "window_moves": True}],
    },
    "Qwen3.6-27B-Domino": {
        "max_draft_tokens": 15,
        "shift_label": False,
        "domino": {"gru_hidden_dim": 1024, "emb_dim": 256},
    },
}
Capture = pytest.CaptureFixture[str]


def write(folder: Path, config: dict[str, Any]) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def replica(folder: Path, name: str, **changes: Any) -> str:
    config = json.loads((BASE / f"{name}.json").read_text())
    return write(folder, config | changes)


def inspected(capsys: Capture, *arguments: str) -> dict[str, Any]:
    assert main(["inspect", *arguments, "--json"]) == 0
    return dict(json.loads(capsys.readouterr().out))


def refused(capsys: Capture, *arguments: str) -> str:
    assert main(["inspect", *arguments]) == 1
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert len(lines) == 1 and captured.out == "", captured
    return lines[0]


@pytest.mark.parametrize("name", FACTS)
def test_the_public_drafts_are_understood_without_weights(
    name: str, tmp_path: Path, capsys: Capture
) -> None:
    """The four drafts people have: each field's value from the published recipe."""
    facts = inspected(capsys, replica(tmp_path / name, name))
    assert (facts["kind"], facts["tensors"]["count"]) == ("draft", 0)
    config = facts["config"]
    assert {field: config[field] for field in FACTS[name]} == FACTS[name]
    assert config["warnings"] == [] and config["checked_against"] is None


@pytest.mark.parametrize("name", ["Qwen3-8B-DFlash-b16", "Qwen3-8B-Domino-b16"])
def test_the_public_drafts_fit_their_target(name: str, tmp_path: Path, capsys: Capture) -> None:
    """Before gigabytes are downloaded, the two configs tell whether they belong together."""
    target = write(tmp_path / "target", QWEN3_8B)
    draft = replica(tmp_path / name, name)
    assert inspected(capsys, draft, "--target", target)["config"]["checked_against"] == target
    other = write(tmp_path / "other", QWEN3_8B | {"num_hidden_layers": 32})
    assert "target_layer_ids[4] is 33" in refused(capsys, draft, "--target", other)
    padded = write(tmp_path / "padded", QWEN3_8B | {"vocab_size": 152064})
    assert "vocab_size is 151936: the target has 152064" in refused(
        capsys, draft, "--target", padded
    )


def test_a_target_that_cannot_be_served_is_named(tmp_path: Path, capsys: Capture) -> None:
    """The 27B drafts belong to a hybrid target; the draft itself is fine."""
    target = write(tmp_path / "target", {"model_type": "qwen3_5", "hidden_size": 5120})
    draft = replica(tmp_path / "draft", "Qwen3.6-27B-Domino")
    assert "model_type is 'qwen3_5'" in refused(capsys, draft, "--target", target)


def test_text_names_what_decides_acceptance(tmp_path: Path, capsys: Capture) -> None:
    """Taps, block, windows, head, proposals and context: read wrongly, each is a silent loss."""
    draft = replica(tmp_path / "draft", "Qwen3.6-27B-DFlash", block_size=None)
    assert main(["inspect", draft]) == 0
    text = capsys.readouterr().out
    for line in (
        "weights      none here; only the config was read",
        "format       authors, DFlash without a Domino head",
        "taps         outputs of target layers 1, 16, 31, 46, 61 (counted from 0)",
        "block        16 positions, mask id 248070",
        "proposals    15, at most 15; row 1 of the block makes the first",
        "layers 0, 1, 2, 3: window of 2048 back from its own position, causal in the block",
        "context      262144 positions",
        "warning      block_size is absent or null, taking 16",
    ):
        assert line in text


def test_a_config_file_alone_will_do(capsys: Capture) -> None:
    """It is what a model's page shows, and quick to download."""
    file = BASE / "Qwen3-8B-Domino-b16.json"
    assert inspected(capsys, str(file))["config"]["format"] == "authors"


def test_a_speculators_draft_is_read_with_its_weights(capsys: Capture) -> None:
    """Tapped layers are shown as layers, whatever the file counts."""
    draft, target = GOLDEN / "f7_speculators_dflash", GOLDEN / "target_qwen3_tiny"
    config = inspected(capsys, str(draft), "--target", str(target))["config"]
    assert (config["format"], config["target_layer_ids"]) == ("speculators", [1, 2, 4])
    assert (config["draft_vocab_size"], config["own_head"]) == (97, True)


def test_a_refusal_is_one_line_and_code_1(tmp_path: Path, capsys: Capture) -> None:
    """Scripts that check a folder before starting services go by the code."""
    draft = replica(tmp_path / "draft", "Qwen3-8B-DFlash-b16", conv_kernel_size=2)
    assert "conv_kernel_size is 2: DFlash-2" in refused(capsys, draft)
    (tmp_path / "lora").mkdir()
    (tmp_path / "lora" / "adapter_config.json").write_text("{}")
    assert "LoRA adapters cannot be served" in refused(capsys, str(tmp_path / "lora"))
    assert "not valid JSON" in refused(capsys, __file__)
