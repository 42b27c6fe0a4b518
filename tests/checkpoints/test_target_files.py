"""The files of a target: shards and index, tied heads, missing, unknown and quantised tensors."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from domino_kernels.attention import Batch, Span
from serving.target_config import open_target, target_tensors
from tests.checkpoints.target_folder import (
    INDEX,
    WEIGHTS,
    change,
    change_tensors,
    config_of,
    refused,
)
from verify_service.target import Target

CPU = torch.device("cpu")


def test_each_tensor_is_missed_by_name(models: dict[str, Path], tmp_path: Path) -> None:
    """A tensor that is not read leaves random or zero weights behind in other loaders."""
    folder = Path(shutil.copytree(models["qwen3"], tmp_path / "m"))
    tensors = load_file(folder / WEIGHTS)
    assert sorted(tensors) == sorted(target_tensors(config_of(folder)))
    for name in tensors:
        save_file({n: t for n, t in tensors.items() if n != name}, folder / WEIGHTS)
        assert f"tensor {name} is missing" in refused(folder)


def test_unknown_tensors_are_refused_and_rotary_buffers_ignored(qwen3: Path) -> None:
    """An unknown tensor is a part of the model that this loader would leave out."""
    frequencies = torch.ones(8)
    change_tensors(qwen3, **{"model.layers.0.self_attn.rotary_emb.inv_freq": frequencies})
    open_target(qwen3)
    change_tensors(qwen3, **{"model.layers.0.self_attn.q_proj.bias": torch.zeros(96)})
    assert "unknown tensors model.layers.0.self_attn.q_proj.bias" in refused(qwen3)


def test_quantised_tensors_are_refused_without_any_config(qwen3: Path) -> None:
    """Reading 8-bit weights as numbers, without their scales, gives a model that babbles."""
    name = "model.layers.1.mlp.up_proj.weight"
    change_tensors(qwen3, **{name: torch.ones(80, 48, dtype=torch.int8)})
    assert f"tensor {name} is stored as I8, and quantised" in refused(qwen3)


def test_a_tied_head_may_be_stored_if_it_is_the_embedding(llama: Path) -> None:
    """transformers ties only equal tensors; reading another head as tied changes every token."""
    embedding = load_file(llama / WEIGHTS)["model.embed_tokens.weight"]
    change_tensors(llama, **{"lm_head.weight": embedding.clone()})
    assert config_of(llama).tied_embeddings
    change_tensors(llama, **{"lm_head.weight": embedding + 1})
    assert "tie_word_embeddings is true, but lm_head.weight" in refused(llama)


def shard(folder: Path) -> dict[str, str]:
    """Splits the weights in two files with an index; returns the index's map."""
    tensors = load_file(folder / WEIGHTS)
    names = sorted(tensors)
    files = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, part in files.items():
        save_file({name: tensors[name] for name in part}, folder / file)
    (folder / WEIGHTS).unlink()
    weight_map = {name: file for file, part in files.items() for name in part}
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return weight_map


def test_shards_are_read_like_one_file(models: dict[str, Path], qwen3: Path) -> None:
    """Every model above a few GB is sharded."""
    shard(qwen3)
    logits = []
    for folder in (models["qwen3"], qwen3):
        checkpoint, config = open_target(folder)
        target = Target(config, checkpoint, dtype=torch.float32, device=CPU)
        batch = Batch([Span(start=0, count=9, pages=[0])], 16, CPU)
        x, _ = target.forward(torch.arange(9), batch, target.new_kv(1, 16))
        logits.append(target.logits(x))
    assert torch.equal(logits[0], logits[1])


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda folder, names: (folder / "b.safetensors").unlink(), "names b.safetensors"),
        (lambda folder, names: (folder / INDEX).write_text("{"), "not valid JSON"),
        (lambda folder, names: (folder / INDEX).write_text("[]"), "expected a JSON object"),
        (lambda folder, names: change(folder, INDEX, weight_map={}), "weight_map must be"),
        (lambda folder, names: change(folder, INDEX, weight_map=names | {"x": 3}), "no file name"),
        (
            lambda folder, names: change(folder, INDEX, weight_map=names | {"x": "a.safetensors"}),
            "tensor x should be in a.safetensors",
        ),
        (
            lambda folder, names: shutil.copy(folder / "a.safetensors", folder / WEIGHTS),
            "remove one of them",
        ),
        (
            lambda folder, names: shutil.copy(folder / "a.safetensors", folder / "b.safetensors"),
            "is also in a.safetensors",
        ),
    ],
)
def test_a_damaged_set_of_shards_is_refused(qwen3: Path, damage: Any, words: str) -> None:
    """Half of a download, or two of them mixed, must not look like a model."""
    damage(qwen3, shard(qwen3))
    assert words in refused(qwen3)


def test_a_lora_adapter_is_refused_with_and_without_a_config(qwen3: Path, tmp_path: Path) -> None:
    """Serving the base model of an adapter answers fluently, and as another model."""
    change(qwen3, "adapter_config.json", peft_type="LORA")
    assert "adapter_config.json is there" in refused(qwen3)
    (qwen3 / "config.json").unlink()
    assert "adapter_config.json is there" in refused(qwen3)


def test_other_weight_formats_are_named(qwen3: Path) -> None:
    """A folder of .bin files looks complete to its owner."""
    (qwen3 / WEIGHTS).rename(qwen3 / "pytorch_model.bin")
    assert "convert pytorch_model.bin to safetensors" in refused(qwen3)
