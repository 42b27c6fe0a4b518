"""Prompts to train on: what is taken, and that no benchmark's prompt is among them."""

from pathlib import Path

from training.prompt_sets import (
    standard_library,
    truncated_json_list,
    user_turns,
    without_benchmarks,
)
from training.word_problems import BOXED, word_problems


def test_a_benchmark_prompt_is_kept_out_in_any_dress() -> None:
    """A draft that was trained on the questions it is measured by measures nothing."""
    question = "Tom has 3 red apples and buys 4 more at the market. How many has he now?"
    benchmarks = [f"Question {i} {'abc'[i % 3]} about item {i}" + BOXED for i in range(120)]
    texts = [
        "please help: tom HAS 3 red apples, and buys 4 more at the market!",
        "Name a fruit." + BOXED,  # the format alone is no prompt
        "Name a fruit." + BOXED,
        "What is a monad?",
    ]
    found = list(without_benchmarks(texts, [*benchmarks, question]))
    assert found == ["Name a fruit." + BOXED, "What is a monad?"]


def test_whole_records_of_a_cut_off_list_are_read() -> None:
    """A data file that ends in the middle of a record must give what is before."""
    text = '[{"a": 1}, {"a": "x]"},\n {"a": 3'
    assert list(truncated_json_list(text)) == [{"a": 1}, {"a": "x]"}]


def test_only_human_turns_are_prompts() -> None:
    """The other model's answers are not what users ask."""
    talk = [
        {"from": "human", "value": "How do I sort a list?"},
        {"from": "gpt", "value": "With sorted()."},
        {"from": "human", "value": "короткий вопрос"},
    ]
    assert list(user_turns([{"conversations": talk}, {}])) == ["How do I sort a list?"]


def test_functions_become_problems_without_their_bodies(tmp_path: Path) -> None:
    """A prompt that holds the solution teaches copying."""
    (tmp_path / "m.py").write_text(
        "class A:\n    def area(self, r: float) -> float:\n        '''Area of a circle.'''\n"
        "        return 3 * r * r\n\ndef bare():\n    return 1\n"
    )
    program, request = standard_library(tmp_path)
    stub = "def area(self, r: float) -> float:\n    '''Area of a circle.'''"
    assert stub in program and "return" not in program
    assert request == "Write a Python function `area`. Area of a circle."


def test_made_up_problems_are_the_same_for_a_seed_and_many() -> None:
    """A run's text must be reproducible from its seed."""
    first, again = list(word_problems(300, 1)), list(word_problems(300, 1))
    assert first == again and len(set(first)) > 290
    assert not any("{" in p.replace("{10}", "").replace("\\", "") and "{a}" in p for p in first)
