"""Progress where nobody watches a terminal: a line now and then instead of none at all."""

import pytest

from domino_cli.answer_bar import AnswerBar
from domino_cli.progress import Bar
from training.regenerate import Answered

DAY_S = 86_400


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that progress sees: one element, to be set."""
    now = [0.0]
    monkeypatch.setattr("domino_cli.progress.time.monotonic", lambda: now[0])
    return now


def test_a_log_gets_a_line_now_and_then(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    """Hours of work whose log stays empty look like a hang; a line a token fills a disk."""
    bar = Bar(10, logged=True)
    for second in range(61):
        clock[0] = float(second)
        bar.draw(second // 10, 60.0 - second, "5 tokens/s")
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "0/10, 0:01:00 left 5 tokens/s",
        "3/10, 0:00:30 left 5 tokens/s",
        "6/10, 0:00:00 left 5 tokens/s",
    ]


def test_days_are_told(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    """A clock of 24 hours tells a run of a day and an hour as one of an hour."""
    Bar(10, logged=True).draw(1, DAY_S + 3600.0)
    assert "1 day, 1:00:00 left" in capsys.readouterr().err


def test_a_bar_leaves_logs_alone(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    """Whose caller prints lines of its own must not get them twice."""
    Bar(10).draw(5, 1.0)
    assert capsys.readouterr().err == ""


def test_loading_is_no_speed_of_answers(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    """One token behind 14 s of loading was told as hours left for a minute's work."""
    bar = AnswerBar(4, range(4), new_tokens=100)
    for second, tokens in ((14.0, 1), (15.0, 11), (50.0, 361)):
        clock[0] = second
        bar.tick(tokens)
    clock[0] = 81.0
    bar.add(Answered(prompt=0, tokens=[5] * 100, ended=True))  # of 361 tokens in all
    assert capsys.readouterr().err.splitlines() == [
        "0/4, 0:00:39 left 10 tokens/s",
        "0/4, 0:00:04 left 10 tokens/s",
        "1/4, 0:00:07 left 5 tokens/s",
    ]
