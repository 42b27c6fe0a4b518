"""Recorded outputs of the public reference code, reproduced by the project's own."""

from pathlib import Path

import pytest

from tests.golden.__main__ import NEEDS, fixture_folders, main, run_folder

HERE = Path(__file__).parent
FOLDERS = fixture_folders([HERE])


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda p: str(p.relative_to(HERE)))
def test_every_required_tensor_equals_the_recording(folder: Path) -> None:
    """A wrong tap, label shift, mask, gate order or tie rule costs acceptance without any error."""
    verdicts = run_folder(folder, set(NEEDS))
    assert verdicts, "no required tensor was compared"
    assert [v for v in verdicts if not v["ok"]] == []


def test_the_tool_fails_when_a_tensor_differs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A comparison that cannot fail proves nothing: one wrong id must give exit code 1."""
    import shutil

    import torch
    from safetensors.torch import load_file, save_file

    shutil.copytree(HERE / "target_qwen3_tiny", tmp_path / "target_qwen3_tiny")
    shutil.copy(HERE / "required.json", tmp_path)
    file = tmp_path / "target_qwen3_tiny" / "expected.safetensors"
    expected = load_file(file)
    expected["greedy_ids"] = expected["greedy_ids"] + torch.eye(24, dtype=torch.long)[-1]
    save_file(expected, file)
    assert main([str(tmp_path)]) == 1
    assert capsys.readouterr().out.endswith("compared 10 of 10 required\n")


def test_a_folder_without_recordings_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Prevents a wrong path that reads like nothing to compare."""
    with pytest.raises(SystemExit) as end:
        main([str(tmp_path / "nowhere")])
    assert end.value.code == 2
    assert f"no recordings in {tmp_path}/nowhere" in capsys.readouterr().err
