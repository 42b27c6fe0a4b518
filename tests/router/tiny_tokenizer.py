"""Small tokenizers of the two kinds targets have, trained on a line of text."""

import json
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

SPECIAL = ["<|im_start|>", "<|im_end|>"]
TEXT = ["the quick brown fox jumps over the lazy dog, naïve ☂ 東京 🙂🙂 the the quick"]

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'system' and not loop.first %}"
    "{{ raise_exception('system must come first') }}"
    "{% endif %}"
    "{{ bos_token + message['role'] + '\n' + message['content'] | trim + eos_token + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ bos_token + 'assistant\n' }}{% endif %}"
)


def byte_level() -> tokenizers.Tokenizer:
    """As Qwen's and SmolLM's: every token is a piece of UTF-8 bytes."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    return tokenizer


def byte_fallback() -> tokenizers.Tokenizer:
    """As Llama 2's: words marked with a lower block, and <0x..> for bytes of rare characters."""
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    words = ["▁", "▁the", "▁quick", "fox", "t", "h", "e", "é", "☂", "."]
    vocabulary = {token: i for i, token in enumerate(["<unk>", *byte_tokens, *words])}
    tokenizer = tokenizers.Tokenizer(
        models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>", byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens(["<s>", "</s>"])
    return tokenizer


def save_target(folder: Path, *, chat_template: str | None = CHAT_TEMPLATE) -> Path:
    """The tokenizer files of a target's folder."""
    folder.mkdir(exist_ok=True)
    byte_level().save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|im_start|>",
        "eos_token": {"__type": "AddedToken", "content": "<|im_end|>", "special": True},
        "add_bos_token": False,
    }
    if chat_template is not None:
        config["chat_template"] = chat_template
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder
