"""`data` and `train` from the command line: a run, and errors as one line with exit code 2."""

import json
from pathlib import Path

import pytest

from domino_cli.__main__ import main
from tests.recorded_models import TARGET
from tests.router.tiny_tokenizer import save_target

CONFIG = """
data = "{data}"
output = "{output}"
target = "{target}"
mask_token_id = 250
layers = 1
taps = 3
block_size = 4
gru_hidden_dim = 8
emb_dim = 4
row_length = 32
rows = 1
anchors = 4
steps = 4
log_interval = 2
save_interval = 2
"""


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """The recorded tiny target with a tokenizer of its size."""
    folder = save_target(tmp_path / "target")
    for name in ("config.json", "model.safetensors"):
        (folder / name).symlink_to(TARGET / name)
    return folder


def test_from_conversations_to_a_checkpoint(
    tmp_path: Path, target: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each command must read what the one before wrote."""
    lines = tmp_path / "in.jsonl"
    ids = list(range(4, 24))
    tokens = {"input_ids": ids, "loss_mask": [0] * 5 + [1] * 15}
    lines.write_text(json.dumps(tokens) + "\n" + json.dumps({"messages": []}) + "\n")
    source, data = str(lines), str(tmp_path / "data")
    assert main(["data", "prepare", source, data, "--target", str(target)]) == 2
    assert "line 2" in capsys.readouterr().err
    skip = ["--skip-malformed"]
    assert main(["data", "prepare", source, data, "--target", str(target), *skip]) == 0
    assert json.loads(capsys.readouterr().out)["kept"] == 1
    config = tmp_path / "run.toml"
    config.write_text(CONFIG.format(data=data, output=tmp_path / "run", target=target))
    assert main(["train", str(config), "steps=2"]) == 0
    assert main(["train", str(config), "steps=2"]) == 0  # nothing left to do
    out, err = capsys.readouterr()
    assert out.splitlines() == [str(tmp_path / "run" / "export")] * 2
    assert "step 2/2" in err and "resumed behind step 2" in err
    assert main(["train", str(config), "steps=2", "anchors=5"]) == 2
    assert "anchors" in capsys.readouterr().err


def test_answers_by_the_target(
    tmp_path: Path, target: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The dataset holds prompts unsupervised and the target's answers supervised."""
    lines = tmp_path / "in.jsonl"
    prompts = ({"input_ids": [i, 9, 30], "loss_mask": [0, 0, 0]} for i in (5, 60))
    lines.write_text("".join(json.dumps(p) + "\n" for p in prompts))
    command = ["data", "regenerate", str(lines), str(tmp_path / "out"), "--target", str(target)]
    assert main([*command, "--new-tokens", "20", "--prompt-tokens", "200", "--keep-truncated"]) == 0
    counts = json.loads(capsys.readouterr().out)
    about = json.loads((tmp_path / "out" / "dataset.json").read_text())
    assert about["counts"] == counts and counts["kept"] == about["documents"]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [(["nowhere.toml"], "nowhere.toml"), (["{file}", "speed=9"], "speed"), (["{file}"], "data")],
)
def test_errors_name_what_is_wrong(
    tmp_path: Path, arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A traceback hides the one line that helps."""
    file = tmp_path / "run.toml"
    file.write_text(CONFIG.format(data=tmp_path, output=tmp_path / "run", target=TARGET))
    assert main(["train", *(a.replace("{file}", str(file)) for a in arguments)]) == 2
    error = capsys.readouterr().err
    assert named in error and error.count("\n") == 1
