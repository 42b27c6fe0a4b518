"""Users' turns made by the target: only whole ones, each with the beginning it was given."""

import dataclasses

from tokenizers import Tokenizer as Model
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from router.chat import ChatTemplate
from router.tokenizer import Tokenizer
from tests.recorded_models import VOCAB
from tests.training import tiny
from training.generate import Limits
from training.own_prompts import SHORTEST, beginnings, own_prompts
from training.ranks import Ranks

TEXTS = ["one two three four five six seven eight", "a  b\nc d", "alone"]


def test_beginnings_are_the_first_words_of_a_text() -> None:
    """Cut elsewhere, or as long as the text itself, a turn is no new prompt."""
    found = list(beginnings(TEXTS, 200, seed=3))
    assert {"", "one", "one two three four", "a", "a  b"} <= set(found)
    halves = {text: len(text.split()) // 2 for text in TEXTS}
    for begun in filter(None, found):
        assert any(t.startswith(begun) and len(begun.split()) <= n for t, n in halves.items())
    assert found == list(beginnings(TEXTS, 200, seed=3)) != list(beginnings(TEXTS, 200, seed=4))


def test_whole_turns_with_their_beginnings() -> None:
    """A turn that has not ended, or that lost its first words, is none that a user writes."""
    target = tiny.target()
    stop = 5
    target.config = dataclasses.replace(target.config, eos_token_ids=(stop,))
    template = "{% for m in messages %}w1 {{ m.content }} w5 {% endfor %}w2"
    words = Model(WordLevel({f"w{i}": i for i in range(VOCAB)}, unk_token="w0"))
    words.pre_tokenizer = WhitespaceSplit()
    tokenizer = Tokenizer(words, ChatTemplate(template, {}))
    begun = ["w7 w8 w9"] * 40 + [""] * 40
    limits = Limits(rows=32, prompt=16, new=48, straggling=0.0, temperature=4.0)
    turns = list(own_prompts(target, tokenizer, begun, limits))
    assert len(turns) == len(set(turns)) and 4 < len(turns) < len(begun)
    assert any(t.startswith("w7 w8 w9") for t in turns)
    assert any(not t.startswith("w7 w8 w9") for t in turns)
    assert all(len(t) >= SHORTEST and len(t.split()) <= 3 + 48 for t in turns)


def test_ranks_take_turns_or_have_their_own() -> None:
    """Two ranks on the same micro-batch learn half as much; own rows by turns, half of them."""
    both = [Ranks(rank, 2).turn(n) for n in range(3) for rank in range(2)]
    assert both == list(range(6))
    assert [Ranks(1, 2, own_rows=True).turn(n) for n in range(3)] == [0, 1, 2]
