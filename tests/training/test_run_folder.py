"""A run's folder under bad conditions: two processes in it, a full disk."""

import json
import resource
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from domino_cli.__main__ import main
from domino_cli.train_plot import read_metrics
from tests.training import runs
from training.claim import claimed
from training.dataset import write_dataset
from training.errors import TrainingError
from training.export import WEIGHTS_FILE
from training.watch import METRICS, Watch

FullDisk = Callable[[int], AbstractContextManager[None]]


@pytest.fixture
def full_disk() -> FullDisk:
    """While entered, no file grows beyond so many bytes."""

    @contextmanager
    def limited(size: int) -> Iterator[None]:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    return limited


def test_two_processes_do_not_write_one_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ranks that outlive their killed parent go on beside the command given again: features that
    one has mapped are overwritten with the other's."""
    config, run = tmp_path / "run.json", tmp_path / "run"
    write_dataset(tmp_path / "data", runs.documents(), {})
    settings = {n: str(v) if isinstance(v, Path) else v for n, v in runs.SMALL.items()}
    config.write_text(json.dumps(settings | {"data": str(tmp_path / "data"), "output": str(run)}))
    with claimed(run, METRICS):
        assert main(["train", str(config)]) == 2
        assert [file.name for file in run.iterdir()] == [METRICS]
    error = capsys.readouterr().err
    assert "another process writes to" in error and "features" not in error
    assert main(["train", str(config), "steps=2"]) == 0


def test_a_full_disk_leaves_whole_lines(tmp_path: Path, full_disk: FullDisk) -> None:
    """Half a line, and the rest of the run behind it, could not be read ever again."""
    with Watch(tmp_path, tensorboard=False) as watch:
        watch.add({"step": 1, "lr": 0.5})
        with full_disk(40), pytest.raises(TrainingError, match="free space"):
            watch.add({"step": 2, "text": "x" * 40})
    assert [line["step"] for line in read_metrics(tmp_path)] == [1]
    with (tmp_path / METRICS).open("a") as file:
        file.write('{"step": 2, "l')  # as a killed process leaves it
    assert [line["step"] for line in read_metrics(tmp_path)] == [1]
    with Watch(tmp_path, tensorboard=False) as watch:
        watch.add({"step": 3, "lr": 0.25})
    assert [line["step"] for line in read_metrics(tmp_path)] == [1, 3]


def test_a_full_disk_keeps_the_export(tmp_path: Path, full_disk: FullDisk) -> None:
    """A draft that is served must not end half written, nor the run in a traceback."""
    session = runs.session(tmp_path, steps=1)
    folder = session.run(lambda _: None)
    before = (folder / WEIGHTS_FILE).read_bytes()
    with full_disk(4096), pytest.raises(TrainingError, match=f"{folder} could not be written"):
        session.export(folder)
    with full_disk(4096), pytest.raises(TrainingError, match="could not be written"):
        write_dataset(folder, runs.documents(400), {})
    assert (folder / WEIGHTS_FILE).read_bytes() == before
    assert not list(folder.glob(".*.partial"))
