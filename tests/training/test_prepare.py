"""Conversations in, documents out: what is learnt, what is dropped, and which line is wrong."""

import json
from pathlib import Path
from typing import Any

import pytest

from router.tokenizer import Tokenizer
from tests.router.tiny_tokenizer import save_target
from training.conversations import LineError
from training.dataset import read_dataset, write_dataset
from training.errors import TrainingError
from training.prepare import Prepared, PrepareOptions, prepare, read_prompts

END = 1  # <|im_end|>
ASK = {"role": "user", "content": "the quick fox"}


def answer(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def tokenizer(tmp_path: Path) -> Tokenizer:
    return Tokenizer.load(save_target(tmp_path / "target"))


def prepared(tmp_path: Path, *lines: Any, **options: Any) -> Prepared:
    file = tmp_path / "in.jsonl"
    texts = (line if isinstance(line, str) else json.dumps(line) for line in lines)
    file.write_text("".join(text + "\n" for text in texts))
    chosen: dict[str, Any] = {"max_tokens": 512, "vocab_size": 400, "end_ids": (END,)} | options
    return prepare(file, tokenizer(tmp_path), PrepareOptions(**chosen))


def learnt(tmp_path: Path, found: Prepared) -> list[str]:
    """Text of each document's supervised tokens."""
    model = tokenizer(tmp_path)
    return [model.decode(d.ids[d.supervised].tolist()) for d in found.documents]


def test_every_common_shape_gives_the_same_document(tmp_path: Path) -> None:
    """A shape read with another mask trains on the user's words."""
    sharegpt = [{"from": "human", "value": "the quick fox"}, {"from": "gpt", "value": "jumps"}]
    lines = [
        {"messages": [ASK, answer("jumps")]},
        {"conversations": [ASK, answer("jumps")]},
        {"id": 7, "conversations": sharegpt},
    ]
    found = prepared(tmp_path, *lines)
    first = found.documents[0]
    assert learnt(tmp_path, found) == ["jumps"] * 3
    assert all(d.ids.tolist() == first.ids.tolist() for d in found.documents)
    assert first.supervised.tolist()[-1] and int(first.ids[-1]) == END
    whole = {"input_ids": first.ids.tolist(), "loss_mask": first.supervised.int().tolist()}
    again = prepared(tmp_path, whole).documents[0]
    assert again.ids.tolist() == first.ids.tolist()
    assert again.supervised.tolist() == first.supervised.tolist()


def test_turns_between_are_context_and_all_answers_are_learnt(tmp_path: Path) -> None:
    """Headers and users' turns must not be predicted; every answer ends with its end of turn."""
    talk = {"messages": [ASK, answer("jumps"), ASK, answer("over the dog")]}
    found = prepared(tmp_path, talk)
    assert learnt(tmp_path, found) == ["jumpsover the dog"]
    document = found.documents[0]
    assert document.ids[document.supervised].tolist().count(END) == 2
    last = prepared(tmp_path, talk, last_turn_only=True)
    assert learnt(tmp_path, last) == ["over the dog"]
    assert last.documents[0].ids.tolist() == document.ids.tolist()


def test_what_is_dropped_is_counted_by_its_reason(tmp_path: Path) -> None:
    """A dataset that shrank silently is found out after the training."""
    long = {"messages": [ASK, answer("jumps over the lazy dog")]}
    whole = len(prepared(tmp_path, long).documents[0].ids)
    found = prepared(
        tmp_path,
        long,
        {"messages": [ASK]},
        {"input_ids": [5, 6, 7], "loss_mask": [0, 0, 1]},
        {"input_ids": [5, 400], "loss_mask": [1, 1]},
        "{oops",
        max_tokens=whole - 3,
        skip_malformed=True,
    )
    assert dict(found.counts) == {
        "truncated": 1,
        "kept": 1,
        "dropped: no assistant turn": 1,
        "dropped: too few supervised tokens": 1,
        "dropped: id outside the vocabulary": 1,
        "dropped: malformed line": 1,
    }
    assert len(found.documents[0].ids) == whole - 3


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{oops", "line 2"),
        ("", "is empty"),
        ("[1]", "JSON object"),
        ('{"prompt": "x"}', "no messages"),
        ('{"messages": [{"role": "robot", "content": "x"}]}', "robot"),
        ('{"messages": [{"role": "user", "content": null}]}', "NoneType"),
        ('{"input_ids": [1], "loss_mask": [1, 1]}', "equal length"),
    ],
)
def test_a_malformed_line_is_named(tmp_path: Path, line: str, reason: str) -> None:
    """One broken line in a million, without its number, costs an afternoon."""
    good = {"messages": [ASK, answer("jumps")]}
    with pytest.raises(LineError, match=reason) as error:
        prepared(tmp_path, good, line, good)
    assert error.value.line == 2


def test_nothing_left_is_an_error(tmp_path: Path) -> None:
    """An empty dataset would fail later, and say less."""
    with pytest.raises(TrainingError, match="no assistant turn 1"):
        prepared(tmp_path, {"messages": [ASK]})


def test_a_dataset_comes_back_as_it_was(tmp_path: Path) -> None:
    """Lengths one off would shift every mask behind them."""
    found = prepared(
        tmp_path, *({"messages": [ASK, answer(t)]} for t in ("jumps", "over the dog", "fox"))
    )
    write_dataset(tmp_path / "out", found.documents, {"counts": dict(found.counts)})
    again = read_dataset(tmp_path / "out")
    for a, b in zip(again, found.documents, strict=True):
        assert a.ids.tolist() == b.ids.tolist() and a.supervised.tolist() == b.supervised.tolist()
    assert json.loads((tmp_path / "out" / "dataset.json").read_text())["documents"] == 3
    with pytest.raises(TrainingError, match="data prepare"):
        read_dataset(tmp_path / "nowhere")


def test_prompts_end_where_the_assistant_begins(tmp_path: Path) -> None:
    """A prompt with its old answer would be continued behind it."""
    file = tmp_path / "in.jsonl"
    file.write_text(json.dumps({"text": "the fox"}) + "\n")
    with file.open("a") as more:
        more.write(json.dumps({"messages": [ASK, answer("jumps")]}) + "\n")
    model = tokenizer(tmp_path)
    expected = [
        model.encode_chat([{"role": "user", "content": t}]) for t in ("the fox", "the quick fox")
    ]
    assert read_prompts(file, model, 400) == (expected, {})
    with pytest.raises(LineError, match="line 1: has ids above"):
        read_prompts(file, model, 100)
    with file.open("a") as more:
        more.write("{\n")
    prompts, faults = read_prompts(file, model, 400, skip_malformed=True)
    assert prompts == [*expected, []] and list(faults) == [2]


def test_a_target_without_a_template_takes_lone_texts(tmp_path: Path) -> None:
    """A base model's prompts have no turns; several turns without a template have no ids."""
    model = Tokenizer.load(save_target(tmp_path / "base", chat_template=None))
    file = tmp_path / "in.jsonl"
    file.write_text(json.dumps({"text": "the fox"}) + "\n")
    assert read_prompts(file, model, 400) == ([model.encode_text("the fox")], {})
    file.write_text(json.dumps({"messages": [ASK, answer("jumps"), ASK, answer("fox")]}) + "\n")
    options = PrepareOptions(max_tokens=64, vocab_size=400, end_ids=(2,))
    with pytest.raises(LineError, match="line 1: has several turns"):
        prepare(file, model, options)
    with pytest.raises(TrainingError, match="nowhere"):
        read_prompts(tmp_path / "nowhere", model, 400)
