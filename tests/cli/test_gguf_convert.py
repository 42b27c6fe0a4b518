"""The GGUF converter on a tiny file written here, and on the embedded model."""

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf.quants import dequantize, quantize
from safetensors import safe_open
from safetensors.torch import load_file
from tokenizers import Tokenizer

from domino_cli.gguf_convert import ConversionError, convert, hf_name, unpermute
from domino_cli.packaged import DEFAULT_TARGET, PACKAGED
from tests.cli.tiny_gguf import (
    HEADS,
    KV_HEADS,
    QUANTIZED,
    Array,
    tiny_weights,
    write_gguf,
)


@pytest.fixture(scope="module")
def weights() -> dict[str, Array]:
    return tiny_weights()


@pytest.fixture(scope="module")
def converted(weights: dict[str, Array], tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    folder = tmp_path_factory.mktemp("converted")
    write_gguf(source, weights)
    assert convert(source, folder, lambda done, total: None) == len(weights)
    return folder


def test_every_value_survives_under_its_hugging_face_name(
    converted: Path, weights: dict[str, Array]
) -> None:
    """Prevents a wrong name, a transposed tensor, or q and k rows left in llama.cpp's order."""
    expected = {name: torch.from_numpy(values) for name, values in weights.items()}
    packed = quantize(weights[QUANTIZED], gguf.GGMLQuantizationType.Q4_1)
    expected[QUANTIZED] = torch.from_numpy(dequantize(packed, gguf.GGMLQuantizationType.Q4_1))
    actual = load_file(converted / "model.safetensors")
    assert actual.keys() == expected.keys()
    for name, values in expected.items():
        assert torch.equal(actual[name], values.to(torch.bfloat16)), name


def test_config_says_what_the_header_said(converted: Path) -> None:
    """Prevents a model that loads but computes with another epsilon, theta or head count."""
    config = json.loads((converted / "config.json").read_text())
    assert config["rms_norm_eps"] == 1e-5
    assert config["rope_theta"] == 10000.0
    assert (config["num_attention_heads"], config["num_key_value_heads"]) == (HEADS, KV_HEADS)
    assert config["tie_word_embeddings"] is True
    assert (config["bos_token_id"], config["eos_token_id"]) == (1, 2)
    chat = json.loads((converted / "tokenizer_config.json").read_text())
    assert (chat["chat_template"], chat["eos_token"]) == ("{{ messages }}", "<|im_end|>")


def test_tokenizer_splits_digits_and_keeps_control_tokens_whole(converted: Path) -> None:
    """Prevents numbers merged into one token, and <|im_end|> spelled out letter by letter."""
    tokenizer = Tokenizer.from_file(str(converted / "tokenizer.json"))
    tokens = tokenizer.encode("ab ab12<|im_end|>").tokens
    assert tokens == ["ab", "Ġ", "ab", "1", "2", "<|im_end|>"]


def test_unpermute_restores_the_two_rotary_halves() -> None:
    """Prevents attention that rotates the wrong pairs: fluent-looking but wrong output."""
    rows = np.arange(8, dtype=np.float32).reshape(8, 1)
    permuted = np.array([0, 2, 1, 3, 4, 6, 5, 7], dtype=np.float32).reshape(8, 1)
    assert np.array_equal(unpermute(permuted, 2), rows)


def test_another_architecture_is_refused_by_name(tmp_path: Path, weights: dict[str, Array]) -> None:
    """Prevents a silent conversion of a model whose layout this converter does not know."""
    write_gguf(tmp_path / "other.gguf", weights, arch="gemma3")
    with pytest.raises(ConversionError, match=r"general\.architecture.*gemma3"):
        convert(tmp_path / "other.gguf", tmp_path, lambda done, total: None)


def test_an_unknown_tensor_is_refused_by_name() -> None:
    """Prevents dropping a tensor, such as a bias, that changes every output."""
    with pytest.raises(ConversionError, match=r"blk\.0\.attn_q\.bias"):
        hf_name("blk.0.attn_q.bias")


@pytest.mark.embedded
def test_embedded_target_has_its_272_tensors(embedded_target: Path) -> None:
    """Prevents a truncated or different model behind the name the results are reported for."""
    manifest = json.loads((embedded_target / "manifest.json").read_text())
    assert manifest["source_sha256"] == PACKAGED[DEFAULT_TARGET].member_sha256
    assert manifest["tensors"] == 272
    with safe_open(embedded_target / "model.safetensors", framework="pt") as file:
        names = file.keys()
        sizes = [np.prod(file.get_slice(name).get_shape()) for name in names]
    assert (len(names), sum(sizes)) == (272, 134_515_008)


@pytest.mark.embedded
def test_embedded_tokenizer_round_trips(embedded_target: Path) -> None:
    """Prevents a tokenizer that loses bytes: accents, emoji, runs of spaces, digits."""
    tokenizer = Tokenizer.from_file(str(embedded_target / "tokenizer.json"))
    text = "def f(x):\n    return x + 12345  # naïve 🙂\t\n"
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text
    assert tokenizer.encode("<|im_start|>user").ids[0] == 1
