"""The id of the mask token: given, or looked up in a tokenizer, and never in contradiction."""

import json
from pathlib import Path
from typing import Any

import pytest

from serving.draft_format import open_draft
from serving.errors import CheckpointError
from tests.checkpoints.draft_folder import Config, Sizes, authors, save

MASK = "<|MASK|>"
TOKENIZERS: dict[str, dict[str, Any]] = {
    "added": {"added_tokens": [{"id": 21, "content": MASK}], "model": {"vocab": {MASK: 3}}},
    "vocabulary": {"added_tokens": None, "model": {"vocab": {"a": 0, MASK: 21}}},
    "unigram": {"model": {"vocab": [["a", -1.0]] * 21 + [[MASK, -2.0]]}},
}


def opened(draft: Path, config: Config, target: Path) -> tuple[int, tuple[str, ...]]:
    _, found = open_draft(save(draft, config, None), Sizes(), tokenizer=target, weights=False)
    return found.mask_token_id, found.warnings


def write(folder: Path, tokenizer: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("place", ["draft", "target"])
def test_an_absent_id_is_looked_up(tmp_path: Path, kind: str, place: str) -> None:
    """The authors' files may name the token and leave its id to the tokenizer."""
    write(tmp_path / place, TOKENIZERS[kind])
    target, config = tmp_path / "target", authors(mask_token_id=None)
    mask, warnings = opened(tmp_path / "draft", config, target)
    assert mask == 21
    assert warnings == (f"mask_token_id is absent or null, taking 21, the id of {MASK!r}",)


def test_another_text_may_be_named(tmp_path: Path) -> None:
    """`mask_token` says which text to look up."""
    target = write(tmp_path / "target", {"model": {"vocab": {"[M]": 9, MASK: 21}}})
    config = authors(mask_token_id=None, mask_token="[M]")
    assert opened(tmp_path / "draft", config, target)[0] == 9


@pytest.mark.parametrize(
    ("dflash", "words"),
    [
        ({"mask_token_id": 20}, "mask_token_id is 20: the tokenizer has 21"),
        ({"mask_token_id": None, "mask_token": "[M]"}, "no tokenizer has '[M]'"),
        ({"mask_token": ""}, "mask_token is '': must be a text"),
        ({"mask_token": 4}, "mask_token is 4: must be a text"),
        ({"mask_token_id": True}, "mask_token_id is True"),
        ({"mask_token_id": 21.0}, "mask_token_id is 21.0"),
        ({"mask_token_id": -1}, "mask_token_id is -1"),
        ({"mask_token_id": 24}, "mask_token_id is 24"),
    ],
)
def test_a_wrong_id_is_refused(tmp_path: Path, dflash: Config, words: str) -> None:
    """Blocks filled with another token than in training are never continued well."""
    target = write(tmp_path / "target", TOKENIZERS["vocabulary"])
    with pytest.raises(CheckpointError) as error:
        opened(tmp_path / "draft", authors(**dflash), target)
    assert words in str(error.value)


def test_an_id_beyond_the_vocabulary_is_refused_even_if_looked_up(tmp_path: Path) -> None:
    """An added token has no row in the target's embedding, which is not extended."""
    tokenizer = {"added_tokens": [{"id": 24, "content": MASK}], "model": {"vocab": {}}}
    target = write(tmp_path / "target", tokenizer)
    with pytest.raises(CheckpointError, match="mask_token_id is 24: the vocabulary has 24 ids"):
        opened(tmp_path / "draft", authors(mask_token_id=None), target)
