"""Files of prompts: the shapes that other projects publish, and files that are none."""

import json
from pathlib import Path

import pytest

from domino_cli.errors import UsageError
from loadtest.dataset import Row, read_dataset
from loadtest.prompts import dataset_prompts, random_prompts, requests_of, workload_prompts

SHAREGPT = {
    "id": "x",
    "conversations": [
        {"from": "system", "value": "be brief"},
        {"from": "human", "value": "hello"},
        {"from": "gpt", "value": "hi"},
        {"from": "human", "value": "again"},
    ],
}
ALPACA = {"instruction": "Add.", "input": "1 2", "output": "3"}
MBPP = {"task_id": 2, "text": "Write a function.", "code": "...", "test_list": ["assert f()"]}
SHAPES = [
    (SHAREGPT, Row(turns=("hello",))),
    (ALPACA, Row(turns=("Add.\n\nInput:\n1 2",))),
    ({"instruction": "Say hi.", "input": ""}, Row(turns=("Say hi.",))),
    (MBPP, Row(turns=("Write a function.",))),
    ({"prompt": "sanitized", "test_list": []}, Row(turns=("sanitized",))),
    ({"question_id": 81, "turns": ["one", "two"]}, Row(turns=("one", "two"))),
    ({"messages": [{"role": "user", "content": "q"}]}, Row(turns=("q",))),
    ({"question": "why?"}, Row(turns=("why?",))),
    ({"token_ids": [3, 4]}, Row(token_ids=(3, 4))),
    ({"prompt": [5]}, Row(token_ids=(5,))),
]


def write(folder: Path, *lines: object) -> Path:
    file = folder / "set.jsonl"
    file.write_text("\n".join(x if isinstance(x, str) else json.dumps(x) for x in lines))
    return file


@pytest.mark.parametrize(("value", "row"), SHAPES)
def test_known_shapes_are_read(tmp_path: Path, value: object, row: Row) -> None:
    """Prevents a published file that needs converting first, or is read as something else."""
    assert read_dataset(write(tmp_path, value)) == [row]


def test_a_json_list_is_read_like_lines_and_blank_lines_do_not_count(tmp_path: Path) -> None:
    """Prevents ShareGPT's own file, which is one list, from being refused."""
    (tmp_path / "list.json").write_text(json.dumps([SHAREGPT, SHAREGPT], indent=1))
    assert len(read_dataset(tmp_path / "list.json")) == 2
    file = write(tmp_path, {"text": "a"}, "", {"text": "b"})
    assert read_dataset(file, 1) == [Row(turns=("a",))]
    assert [p.index for p in dataset_prompts(file, None)] == [0, 1]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{not json", "not JSON"),
        ("3", "is no object"),
        ({"answer": "x"}, "no prompt in it; known keys: conversations"),
        ({"prompt": "  "}, "'prompt' holds an empty prompt"),
        ({"text": 7}, "'text' holds an empty prompt or one that is no text"),
        ({"turns": []}, "'turns' holds no prompt"),
        ({"turns": ["ok", ""]}, "'turns' holds an empty prompt"),
        ({"conversations": 5}, "'conversations' is not of the known form"),
        ({"conversations": ["x", "y"]}, "'conversations' is not of the known form"),
        ({"messages": [{"content": "x"}]}, "'messages' is not of the known form"),
        ({"token_ids": [1, -1]}, "not an integer of at least 0"),
        ({"token_ids": [1, True]}, "not an integer of at least 0"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: object, reason: str) -> None:
    """Prevents a prompt that is silently left out, or an error that says not where it is."""
    with pytest.raises(UsageError) as error:
        read_dataset(write(tmp_path, {"text": "good"}, line))
    assert "set.jsonl, line 2: " in str(error.value)
    assert reason in str(error.value)


def test_sharegpts_entries_without_an_exchange_are_left_out_and_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Prevents the published file, which has such entries, from being refused as a whole."""
    alone: dict[str, object] = {"conversations": [{"from": "gpt", "value": "x"}]}
    empty: dict[str, object] = {
        "conversations": [{"from": "human", "value": " "}, {"from": "gpt", "value": "x"}]
    }
    assert read_dataset(write(tmp_path, alone, SHAREGPT, empty)) == [Row(turns=("hello",))]
    assert "2 conversations without" in capsys.readouterr().err


def test_missing_empty_and_too_short_files_are_refused(tmp_path: Path) -> None:
    """Prevents a run of nothing, or of fewer prompts than were asked for."""
    with pytest.raises(UsageError, match="cannot be read"):
        read_dataset(tmp_path / "none.jsonl")
    with pytest.raises(UsageError, match="no prompts in it"):
        read_dataset(write(tmp_path, ""))
    with pytest.raises(UsageError, match=r"num_prompts: 5, but .* has 1"):
        dataset_prompts(write(tmp_path, {"text": "a"}), 5)


class Vocabulary:
    vocab_size, max_context, eos_token_ids = 10, 64, (1, 2)


def test_random_ids_are_repeatable_and_never_end_the_answer() -> None:
    """Prevents arms that answer different random prompts, or prompts that hold an end token."""
    prompts = random_prompts(20, 8, 7, Vocabulary())
    assert prompts == random_prompts(20, 8, 7, Vocabulary())
    assert prompts != random_prompts(20, 8, 8, Vocabulary())
    ids = {token for prompt in prompts for token in prompt.token_ids}
    assert ids == set(range(10)) - {1, 2}
    with pytest.raises(UsageError, match="random_input_len"):
        random_prompts(1, 64, 7, Vocabulary())


def test_unknown_workloads_are_refused_and_mt_bench_has_both_turns() -> None:
    """Prevents half of MT-Bench from being left out, and a typo from becoming a default."""
    with pytest.raises(UsageError, match="'gsm9k' is unknown; known: gsm8k"):
        workload_prompts("gsm9k", 1)
    prompts = workload_prompts("mt-bench", 2)
    assert [len(prompt.turns) for prompt in prompts] == [2, 2]
    assert requests_of(prompts) == 4
