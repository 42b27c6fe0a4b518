"""Checkpoints with random weights are read by the services like any other."""

from pathlib import Path

import pytest

from benchmarks import random_pair
from benchmarks.random_pair import DOMINO, QWEN3_8B, write_pair
from router.tokenizer import Tokenizer
from serving.draft_format import open_draft
from serving.target_config import open_target


def test_the_pair_is_what_the_strict_loaders_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prevents minutes of writing on a device that end in a refused tensor."""
    monkeypatch.setattr(random_pair, "FILE_BYTES", 4096)
    small = {"hidden_size": 32, "intermediate_size": 48, "head_dim": 16, "vocab_size": 99}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    head = DOMINO | {"gru_hidden_dim": 8, "emb_dim": 4, "mask_token_id": 98}
    write_pair(tmp_path, QWEN3_8B | small | heads, head)
    checkpoint, target = open_target(tmp_path / "target")
    _, draft = open_draft(tmp_path / "draft", target, tokenizer=tmp_path / "target")
    assert len(list((tmp_path / "target").glob("*.safetensors"))) > 1
    assert checkpoint.dtypes["model.norm.weight"] == "BF16"
    assert draft.domino is not None and draft.max_draft_tokens == 16 and draft.num_layers == 5
    assert Tokenizer.load(tmp_path / "target").num_ids == 99
