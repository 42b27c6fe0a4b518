"""What a result says of the machine and the tree it comes from."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from benchmarks import provenance
from benchmarks.other_work import OtherWork
from benchmarks.provenance import Origin, cpu, tree

IDENTITY = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / "code.py").write_text("1\n")
    (tmp_path / ".gitignore").write_text("cache/\n")
    for arguments in (["init", "-q"], ["add", "."], [*IDENTITY, "commit", "-q", "-m", "first"]):
        subprocess.run(["git", *arguments], cwd=tmp_path, check=True)
    return tmp_path


def test_results_and_ignored_files_leave_a_tree_clean(repository: Path) -> None:
    """Prevents the second of two results from being refused because of the first."""
    for name in ("benchmarks/cpu.json", "benchmarks/cpu.md", "cache/x.py"):
        (repository / name).parent.mkdir(exist_ok=True)
        (repository / name).write_text("{}")
    assert tree(repository)["clean"] is True
    assert len(tree(repository)["commit"]) == 40


@pytest.mark.parametrize("name", ["code.py", "new.py", "benchmarks/new.py"])
def test_changed_and_untracked_code_makes_a_tree_dirty(repository: Path, name: str) -> None:
    """Prevents figures of code that no commit holds."""
    (repository / "benchmarks").mkdir()
    (repository / name).write_text("2\n")
    assert tree(repository)["clean"] is False


def test_code_that_changes_during_a_run_makes_its_tree_dirty(repository: Path) -> None:
    """Prevents figures credited to the commit of the end, or to that of the start."""
    origin = Origin.at_start("a command", repository)
    assert origin.at_end(repository)["tree"]["clean"] is True
    (repository / "code.py").write_text("2\n")
    subprocess.run(["git", *IDENTITY, "commit", "-qam", "second"], cwd=repository, check=True)
    found = origin.at_end(repository)
    assert found["tree"] == {"commit": origin.tree["commit"], "clean": False}


def test_a_folder_without_git_is_never_clean(tmp_path: Path) -> None:
    """Prevents figures of an unpacked archive, whose code nobody can name."""
    assert tree(tmp_path) == {"commit": None, "clean": False}


def test_an_archive_is_clean_while_all_its_code_is_the_commits(repository: Path) -> None:
    """Prevents figures of an unpacked archive that somebody has edited, or added code to."""
    listed = subprocess.run(
        ["git", "ls-tree", "-r", "HEAD"], cwd=repository, check=True, capture_output=True, text=True
    ).stdout.splitlines()
    blobs = {line.split("\t")[1]: line.split()[2] for line in listed}
    (repository / "tree.json").write_text(json.dumps({"commit": "c0ffee", "blobs": blobs}))
    shutil.rmtree(repository / ".git")
    assert tree(repository) == {"commit": "c0ffee", "clean": True}
    (repository / "new.py").write_text("2\n")
    assert tree(repository) == {"commit": "c0ffee", "clean": False}


def test_native_bfloat16_is_read_from_the_flags(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prevents emulated bfloat16 figures from being taken for what the hardware does."""
    file = tmp_path / "cpuinfo"
    monkeypatch.setattr(provenance, "CPUINFO", file)
    file.write_text("model name\t: A 9000\nflags\t\t: fpu avx2 avx512f avx512_bf16\n\n")
    assert (cpu().model, cpu().features) == ("A 9000", ("avx2", "avx512f", "avx512_bf16"))
    assert cpu().has_bfloat16
    file.write_text("model name\t: A 8000\nflags\t\t: fpu avx2\n\n")
    assert not cpu().has_bfloat16


def test_other_work_is_neither_ours_nor_idle_time(tmp_path: Path) -> None:
    """Prevents counting our own services, or idle time, as a busy machine.

    Of 1000 ticks 400 are idle or waiting, 450 ours in a process with a bracket in its name, and
    150 somebody else's, stolen ones included.
    """
    (tmp_path / "7").mkdir()

    def write(cpu: str, user: int, system: int) -> None:
        (tmp_path / "stat").write_text(f"cpu  {cpu}\ncpu0 1 1 1 1\n")
        name = "7 (a) b (c)) S 1 1 1 0 -1 0 0 0 0 0"
        (tmp_path / "7" / "stat").write_text(f"{name} {user} {system} 0 0 20 0\n")

    write("100 0 100 100 0 0 0 0 0 0", 50, 50)
    others = OtherWork([7], tmp_path)
    write("500 50 200 400 100 0 0 50 30 0", 400, 150)
    assert others.share() == pytest.approx(0.15)
    assert OtherWork([7], tmp_path / "nowhere").share() is None
