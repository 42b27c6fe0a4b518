"""`data regenerate`: the engine's answers, side files, and a killed process that goes on."""

import json
import signal
import threading
from functools import partial
from pathlib import Path

import pytest

from domino_cli.__main__ import main
from tests.recorded_models import TARGET
from tests.router.tiny_tokenizer import save_target
from tests.training import tiny
from training.answer_journal import ANSWERS, FAILED, TRUNCATED, AnswerJournal
from training.claim import claimed
from training.dataset import read_dataset
from training.engine_answers import Failed, engine_answers
from training.generate import Generator, Limits
from training.regenerate import Answered

PROMPTS = [[5, 9, 30], [60, 9, 30], [104, 51, 121, 70, 225], [182], [45, 45, 200, 7] * 12]
NEW = 20


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    """`data regenerate` of PROMPTS with the recorded target, into tmp_path/out."""
    target = save_target(tmp_path / "target")
    for name in ("config.json", "model.safetensors"):
        (target / name).symlink_to(TARGET / name)
    source = tmp_path / "in.jsonl"
    records = ({"input_ids": p, "loss_mask": [0] * len(p)} for p in PROMPTS)
    source.write_text("".join(json.dumps(record) + "\n" for record in records))
    return [
        *("data", "regenerate", str(source), str(tmp_path / "out"), "--target", str(target)),
        *("--new-tokens", str(NEW), "--rows", "2", "--prompt-tokens", "40"),
    ]


def lines(tmp_path: Path, name: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in (tmp_path / "out" / name).read_text().splitlines()]


answers = partial(engine_answers, TARGET, rows=2, device="cpu", dtype="float32")


def test_the_engines_answers_are_the_generators() -> None:
    """Two ways of making text must make the same text, or a resumed set is a mixture."""
    limits = Limits(rows=8, prompt=64, new=NEW, straggling=0.0)
    stops = tiny.target().config.eos_token_ids
    expected = Generator(tiny.target(), limits, stops or [256]).answers(PROMPTS)
    wanted = range(len(PROMPTS))
    told: list[int] = []
    found = list(answers(PROMPTS, wanted, new=NEW, tick=told.append))
    assert sorted(answer.prompt for answer in found) == list(wanted)
    for answer in found:
        assert isinstance(answer, Answered)
        assert answer.tokens == expected[answer.prompt]
    assert told == sorted(told) and told[-1] == sum(map(len, expected))


def test_a_short_answer_does_not_wait_for_a_long_one() -> None:
    """Answers kept in the order of prompts are lost with the process while an early one runs."""
    refused = [300]  # an id that the target does not have
    found = answers([PROMPTS[0], refused], range(2), new=200)
    assert [(type(a), a.prompt) for a in found] == [(Failed, 1), (Answered, 0)]


def test_side_files_have_what_the_dataset_lacks(
    tmp_path: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """An answer cut off, or a prompt left out, must be found again by its line."""
    assert main([*command, "--keep-truncated"]) == 0
    counts = json.loads(capsys.readouterr().out)
    assert [line["line"] for line in lines(tmp_path, FAILED)] == [5]  # 48 tokens, 40 allowed
    assert "48 tokens" in str(lines(tmp_path, FAILED)[0]["reason"])
    there = {line["line"] for name in (ANSWERS, TRUNCATED) for line in lines(tmp_path, name)}
    assert there == {1, 2, 3, 4} and counts["failed"] == 1
    documents = read_dataset(tmp_path / "out")
    assert len(documents) == counts["kept"] == counts["answered"] + counts["truncated"]
    assert documents[0].ids[:3].tolist() == PROMPTS[0]
    assert documents[0].supervised.tolist() == [False] * 3 + [True] * (len(documents[0].ids) - 3)


def test_a_killed_process_goes_on(
    tmp_path: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Hours of answers must not be lost for half a line; none may be made or kept twice."""
    assert main([*command, "--keep-truncated"]) == 0
    whole = [d.ids.tolist() for d in read_dataset(tmp_path / "out")]
    file = tmp_path / "out" / TRUNCATED
    text = file.read_text()
    file.write_text(text[: len(text) - 9])  # as kill -9 in the middle of a line leaves it
    capsys.readouterr()
    assert main([*command, "--keep-truncated"]) == 0
    err = capsys.readouterr().err
    assert "4 of 5 prompts are done" in err
    assert [d.ids.tolist() for d in read_dataset(tmp_path / "out")] == whole
    there = {n: [line["line"] for line in lines(tmp_path, n)] for n in (ANSWERS, TRUNCATED, FAILED)}
    assert sorted(str(i) for found in there.values() for i in found) == list("12345")


def test_other_settings_are_refused_by_name(
    tmp_path: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Answers of two limits, or of two targets, in one set."""
    assert main([*command, "--keep-truncated"]) == 0
    assert main([*command[:-5], "30", *command[-4:]]) == 2
    assert "new_tokens: 30" in capsys.readouterr().err


def test_the_journal_keeps_what_it_was_told(tmp_path: Path) -> None:
    """The order of completion is not the order of prompts."""
    with AnswerJournal(tmp_path, {}) as journal:
        journal.add(Answered(prompt=3, tokens=[1, 2], ended=True))
        journal.add(Answered(prompt=1, tokens=[3], ended=False))
        assert journal.done == {1, 3}
        assert [a.prompt for a in journal.answers(truncated=True)] == [1, 3]
        assert [a.prompt for a in journal.answers(truncated=False)] == [3]


def test_two_processes_do_not_answer_into_one_folder(
    tmp_path: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The second one took the first one's half line for a killed process's, and cut it off."""
    with claimed(tmp_path / "out", ANSWERS):
        assert main(command) == 2
    assert "another process writes to" in capsys.readouterr().err


def test_an_interrupt_waits_for_a_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter ended beside a thread in native code: an abort instead of exit code 130."""
    main_thread, ended = threading.main_thread().ident, threading.Event()
    assert main_thread is not None

    def load(config: object) -> None:
        signal.pthread_kill(main_thread, signal.SIGINT)
        ended.wait(0.2)  # nobody sets it: longer than the interrupt takes
        ended.set()

    monkeypatch.setattr("verify_service.load.load", load)
    # A suite that was started in the background ignores interrupts.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            next(answers(PROMPTS, range(1), new=NEW))
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended.is_set()
