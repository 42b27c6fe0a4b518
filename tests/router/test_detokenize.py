"""Incremental text equals the text of the whole, however the ids are cut into steps."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.detokenize import Detokenizer
from router.tokenizer import Tokenizer
from tests.router.tiny_tokenizer import byte_fallback, byte_level

KINDS = {"byte_level": byte_level(), "byte_fallback": byte_fallback()}
TOKENIZERS = {kind: Tokenizer(model, None) for kind, model in KINDS.items()}


def pieces(kind: str, steps: list[list[int]]) -> list[str]:
    detokenizer = Detokenizer(TOKENIZERS[kind])
    return [*(detokenizer.push(step) for step in steps), detokenizer.finish()]


def ids(kind: str, *tokens: str) -> list[int]:
    vocabulary = KINDS[kind].get_vocab()
    return [vocabulary[token] for token in tokens]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=500, deadline=None)
@given(data=st.data())
def test_pieces_concatenate_to_the_whole(kind: str, data: st.DataObject) -> None:
    """Prevents lost, doubled or changed characters: random ids, most of them no valid UTF-8."""
    any_id = st.integers(0, TOKENIZERS[kind].num_ids + 5)  # beyond: padding of the vocabulary
    steps = data.draw(st.lists(st.lists(any_id, max_size=4), max_size=24))
    whole = KINDS[kind].decode([id_ for step in steps for id_ in step], skip_special_tokens=True)
    assert "".join(pieces(kind, steps)) == whole


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=300, deadline=None)
@given(text=st.text(alphabet="the quick é☂東🙂\u200d\n."), size=st.integers(1, 3))
def test_real_text_is_never_cut_within_a_character(kind: str, text: str, size: int) -> None:
    """Prevents half characters on a client's screen."""
    whole = KINDS[kind].encode(text).ids
    steps = [whole[i : i + size] for i in range(0, len(whole), size)]
    got = pieces(kind, steps)
    assert "\N{REPLACEMENT CHARACTER}" not in "".join(got)
    assert "".join(got) == KINDS[kind].decode(whole)


def test_text_comes_as_soon_as_it_is_final() -> None:
    """Prevents a detokenizer that is right because it holds everything back."""
    the = KINDS["byte_level"].encode("the").ids
    umbrella = ids("byte_level", *"âĺĤ")  # the bytes e2 98 82
    assert pieces("byte_level", [the, umbrella[:1], umbrella[1:2], umbrella[2:], the]) == [
        "the", "", "", "☂", "the", "",
    ]  # fmt: skip


def test_a_word_after_a_special_token_keeps_its_space() -> None:
    """Prevents "thequick": decoders strip the first word's space, special tokens are no words."""
    the, end, quick = ids("byte_fallback", "▁the", "</s>", "▁quick")
    assert pieces("byte_fallback", [[the], [end], [], [quick]]) == ["the", "", "", " quick", ""]
