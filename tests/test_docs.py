"""What README and docs tell a reader to type or open: by the programs' own help, and the tree."""

import contextlib
import io
import re
import runpy
import shlex
import subprocess
import sys
import warnings
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest

from domino_cli.__main__ import main, parser
from training.config import TrainConfig

ROOT = Path(__file__).parent.parent
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *(ROOT / folder / "README.md" for folder in ("benchmarks", "deploy", "tests/golden")),
    *sorted((ROOT / "models").glob("*/README.md")),
]
RESULTS = sorted((ROOT / "benchmarks").glob("*_*.md"))  # records of their day: links alone
BLOCKS = re.compile(r"^```\w*\n(.*?)^```|((?:^    .*\n)+)", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"`([^`\n]+(?:\n[^`\n]+)?)`")
STARTS = ("domino-serve ", "python -m ", "torchrun ", "make ")
# A subcommand's name, not an argument of it.
NESTED = ("data", "models", "bench")


def lines_to_type(page: Path) -> Iterator[list[str]]:
    """Words of each command line in the page's blocks, comments left out."""
    for block in BLOCKS.finditer(page.read_text()):
        for line in (block[1] or block[2]).replace("\\\n", " ").splitlines():
            if line.strip().startswith(STARTS):
                yield shlex.split(line, comments=True)


def mentioned(page: Path) -> Iterator[list[str]]:
    """Words of commands within sentences, which need not be whole; brackets mark options."""
    for found in INLINE.finditer(BLOCKS.sub("", page.read_text())):
        words = shlex.split(found[1].replace("[", " ").replace("]", " "))
        if len(words) > 1 and found[1].startswith(STARTS):
            yield words


def program(words: list[str]) -> tuple[str, ...]:
    """What is to be asked for help: `domino-serve` and its command, or a module."""
    if words[0] == "domino-serve":
        return tuple(words[: 3 if words[1] in NESTED and len(words) > 2 else 2])
    return ("python", "-m", words[words.index("-m") + 1])


@cache
def help_of(name: tuple[str, ...]) -> str:
    """Fails for programs that are not there."""
    text = io.StringIO()
    if name[-1] == "loadtest":  # its import changes the process
        command = [sys.executable, "-m", "loadtest", "--help"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(text),
        warnings.catch_warnings(action="ignore", category=RuntimeWarning),  # imported before
        pytest.raises(SystemExit) as end,
    ):
        patch.setattr(sys, "argv", [name[-1], "--help"])
        if name[0] == "python":
            runpy.run_module(name[-1], run_name="__main__")
        main([*name[1:], "--help"])
    assert not end.value.code, name
    return text.getvalue()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_and_their_options_exist(page: Path) -> None:
    """Prevents a page whose commands were renamed; a reader's first try would fail."""
    makefile = (ROOT / "Makefile").read_text()
    for words in [*lines_to_type(page), *mentioned(page)]:
        if words[0] == "make":
            assert re.search(rf"^{words[1]}:", makefile, re.MULTILINE), words
            continue
        name = program(words)
        own = words[words.index(name[-1]) + 1 :]
        missing = {
            flag for flag in own if flag.startswith("--") and f"{flag} " not in f"{help_of(name)} "
        }
        assert not missing, words
        if name[-1] == "train" and len(own) > 1:
            keys = {word.partition("=")[0] for word in own if "=" in word}
            assert keys <= {spec.name for spec in fields(TrainConfig)}, words


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_lines_to_type_are_whole(page: Path) -> None:
    """Prevents a line that lacks an argument its command requires."""
    for words in lines_to_type(page):
        if words[0] == "domino-serve":
            parser().parse_args(["a:1" if word == "HOST:PORT" else word for word in words[1:]])


@pytest.mark.parametrize("page", [*PAGES, *RESULTS, ROOT / "LOG.md"], ids=lambda page: page.name)
def test_links_and_files_exist(page: Path) -> None:
    """Prevents links to pages that have moved, and results that are only named."""
    text = page.read_text()
    links = {link for link in re.findall(r"\]\(([^)#\s]+)", text) if "://" not in link}
    assert not {link for link in links if not (page.parent / link).exists()}
    if page in PAGES:
        named = set(re.findall(r"`([\w.-]+(?:/[\w.-]+)+\.(?:py|md|json|toml|yaml|cu|sh))`", text))
        roots = (ROOT, page.parent, ROOT / "kernels", ROOT / "deploy/kubernetes")
        assert not {file for file in named if not any((root / file).exists() for root in roots)}


def test_the_readme_leads_to_every_page() -> None:
    """Prevents a page that nobody finds."""
    text = (ROOT / "README.md").read_text()
    for page in PAGES[1:]:
        place = page.relative_to(ROOT)
        assert f"({place})" in text or "golden" in place.parts, place


def test_tests_that_pages_name_exist() -> None:
    """Prevents a page that vouches with a test which is gone."""
    there = "\n".join(file.read_text() for file in (ROOT / "tests").rglob("test_*.py"))
    for page in PAGES:
        text = page.read_text()
        for start in re.findall(r"`(test_\w+?)_?(?:\.\.\.)?`", text):
            assert f"def {start}" in there, (page.name, start)
    table = re.findall(
        r"^\|.*\| ([^|]*) \|$", (ROOT / "docs/failures.md").read_text(), re.MULTILINE
    )
    files = [file for cell in table for file in re.findall(r"\b[a-z]+/\w+", cell)]
    assert len(files) > 20
    assert not [file for file in files if not (ROOT / "tests" / f"{file}.py").is_file()]
