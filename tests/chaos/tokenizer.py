"""A tokenizer for the recorded target: one token a byte, and an end token."""

import json
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers


def save_tokenizer(folder: Path) -> Path:
    """256 bytes and an end token: the 257 ids of the recorded target."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate(alphabet)}
    model = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = decoders.ByteLevel()
    model.add_special_tokens(["<end>"])
    model.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<end>"}))
    return folder
