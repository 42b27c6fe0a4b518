"""Features on disk: the run they make is the run without, and their size is told first."""

from pathlib import Path

import pytest
import torch

from tests.training import runs
from training import feature_file
from training.errors import TrainingError
from training.feature_file import ABOUT, FILE
from training.opening import open_session


@pytest.mark.parametrize("soft", [0.0, 0.5])
def test_training_from_disk_is_training_online(tmp_path: Path, soft: float) -> None:
    """Rows of the file in another order, or the last state read as features."""
    found = {}
    for kind in ("online", "disk", "memory"):
        session = runs.session(tmp_path / kind, features=kind, soft=soft)
        for _ in range(3):
            session.trainer.train_step()
        found[kind] = session.trainer.masters
    for name, weight in found["online"].items():
        torch.testing.assert_close(found["disk"][name], weight, msg=name)
        torch.testing.assert_close(found["memory"][name], weight, msg=name)


def test_the_size_is_told_before_and_the_file_used_again(tmp_path: Path) -> None:
    """Terabytes are found out on a full disk; features of other data are worse than none."""
    told: list[str] = []
    config = runs.config(tmp_path, features="disk")
    session = open_session(config, told.append, documents=runs.documents())
    line = next(line for line in told if "on disk" in line)
    size = (tmp_path / "features" / FILE).stat().st_size
    assert f"{size / 1e9:.3f} GB" in line and "free" in line
    assert size == session.trainer.features.size.bytes
    written = (tmp_path / "features" / FILE).stat().st_mtime_ns
    told.clear()
    open_session(config, told.append, documents=runs.documents())
    assert any("there already" in line for line in told)
    assert (tmp_path / "features" / FILE).stat().st_mtime_ns == written
    open_session(config, told.append, documents=runs.documents(13))
    assert (tmp_path / "features" / FILE).stat().st_mtime_ns > written, "another dataset's"


def test_a_file_that_was_not_finished_is_made_anew(tmp_path: Path) -> None:
    """A killed dump leaves zeros, which train without any sign."""
    runs.session(tmp_path, features="disk")
    (tmp_path / "features" / ABOUT).unlink()
    data = tmp_path / "features" / FILE
    whole = data.read_bytes()
    data.write_bytes(bytes(len(whole)))
    runs.session(tmp_path, features="disk")
    assert data.read_bytes() == whole


def test_a_disk_too_small_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Filling the disk would cost the checkpoints of other runs."""
    monkeypatch.setattr(feature_file, "RESERVE", 1 << 60)
    with pytest.raises(TrainingError, match="GB are needed"):
        runs.session(tmp_path, features="disk")
    assert not (tmp_path / "features" / FILE).exists()
