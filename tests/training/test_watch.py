"""What a run shows of itself: figures, evaluations by real drafting, curves, checkpoint states."""

import json
import re
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch

from domino_cli.__main__ import main
from domino_cli.in_process import collect
from domino_cli.train_plot import plot, read_metrics
from tests.engines import MODES, engines
from tests.recorded_models import BLOCK, PROMPTS, TARGET
from tests.training import runs, tiny
from training import checkpoint
from training.best import ABOUT, BEST, best_so_far, keep_best
from training.conversations import LineError
from training.errors import TrainingError
from training.evaluate import MACRO, read_held_out
from training.export import WEIGHTS_FILE
from training.session import EXPORT
from training.watch import METRICS, Speed, scalars

NEW = 24


def held_out(folder: Path) -> Path:
    """The recorded prompts as two workloads."""
    file = folder / "held_out.jsonl"
    lines = (
        {"workload": "even" if i % 2 == 0 else "odd", "input_ids": p, "loss_mask": [0] * len(p)}
        for i, p in enumerate(PROMPTS)
    )
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def trained(folder: Path, **changes: Any) -> list[dict[str, Any]]:
    """A run of 12 steps that evaluates; its lines of figures."""
    options = {"held_out": held_out(folder), "eval_interval": 6, "eval_tokens": NEW} | changes
    runs.session(folder, **options).run(lambda _: None)
    return [json.loads(line) for line in (folder / METRICS).read_text().splitlines()]


def test_evaluation_is_what_the_services_accept(tmp_path: Path) -> None:
    """Acceptance of another code path, or of the masters instead of the export, is another draft's
    (training.md 6: within 10%; here the same steps)."""
    lines = [line for line in trained(tmp_path) if "evaluation" in line]
    assert [line["step"] for line in lines] == [6, 12]
    found = lines[-1]["evaluation"]
    stops, lengths = tiny.target().config.eos_token_ids, {}
    with engines(TARGET, tmp_path / EXPORT, int8=False) as services:
        for start, workload in ((0, "even"), (1, "odd")):
            tokens = steps = 0
            for prompt in PROMPTS[start::2]:
                events = services.submit(
                    prompt, NEW, mode=MODES["domino"], draft_tokens=BLOCK - 1, stop_ids=stops
                )
                ids, complete = collect(events)
                tokens += len(ids) - 1
                steps += complete.speculation.verify_steps
            lengths[workload] = tokens / steps
            assert found["workloads"][workload]["verify_steps"] == steps
    for workload, length in lengths.items():
        assert found["workloads"][workload]["acceptance_length"] == pytest.approx(length, abs=1e-4)
    assert found["acceptance_macro"] == pytest.approx(sum(lengths.values()) / 2, abs=1e-4)
    shares = found["workloads"]["even"]["accepted_shares"]
    assert len(shares) == BLOCK - 1 and shares == sorted(shares, reverse=True)
    assert "base_acceptance_macro" in found


def test_the_best_draft_stays(tmp_path: Path) -> None:
    """Rotation removed the best weights, and the last ones were shipped."""
    lines = trained(tmp_path, eval_interval=4, max_checkpoints=1)
    found = {line["step"]: line["evaluation"][MACRO] for line in lines if "evaluation" in line}
    kept = json.loads((tmp_path / BEST / ABOUT).read_text())
    assert kept == {"step": max(found, key=lambda s: found[s]), MACRO: max(found.values())}
    worse, better = tmp_path / EXPORT, (tmp_path / BEST / WEIGHTS_FILE).read_bytes()
    assert best_so_far(tmp_path) == kept[MACRO]
    (worse / "config.json").write_text("{}")
    keep_best(tmp_path, worse, {"step": 99, MACRO: 9.0})
    assert best_so_far(tmp_path) == 9.0
    assert (tmp_path / BEST / "config.json").read_text() == "{}"
    assert better and not list(tmp_path.glob(".best*"))


def test_figures_of_a_line(tmp_path: Path) -> None:
    """Whoever watches a run needs both branches, the schedule and the speed."""
    line = next(line for line in trained(tmp_path) if "loss" in line)
    assert {
        *("step", "loss", "base_loss", "final_loss", "accuracy", "base_accuracy", "top5"),
        *("accept_len", "base_accept_len", "lambda", "lr", "grad_norm", "tokens"),
        *("tokens_per_s", "steps_per_s", "eta_s"),
    } <= line.keys()
    assert line["tokens"] == line["step"] * 2 * 64  # rows x row_length


def test_a_bad_held_out_line_is_named(tmp_path: Path) -> None:
    """Found at the first evaluation instead of the start, it would end a run of hours."""
    file = tmp_path / "prompts.jsonl"
    good = json.dumps({"input_ids": [3, 4], "loss_mask": [0, 0]})
    for bad in ("{oops", "", json.dumps({"input_ids": [300], "loss_mask": [0]})):
        file.write_text(f"{good}\n{bad}\n{good}\n")
        with pytest.raises(LineError, match="line 2"):
            read_held_out(file, TARGET, 257)
    with pytest.raises(TrainingError, match="held_out"):
        runs.session(tmp_path / "run", held_out=tmp_path / "nowhere")


def test_curves_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The page must show every figure, need nothing else and count a repeated step once."""
    trained(tmp_path)
    figures = read_metrics(tmp_path)
    with (tmp_path / METRICS).open("a") as more:
        more.write(json.dumps({**figures[-1], "lr": 9.0}) + "\n")
    assert len(read_metrics(tmp_path)) == len(figures)
    assert main(["train", "plot", str(tmp_path)]) == 0
    page = Path(capsys.readouterr().out.strip())
    assert page == plot(tmp_path)
    text = page.read_text()
    assert not re.search(r'(src|href)="', text), "the page needs something else"
    drawn = [ElementTree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", text)]
    titles = " ".join(svg.find("text").text or "" for svg in drawn)  # type: ignore[union-attr]
    for title in ("Loss", "Accuracy", "real drafting", "Learning rate", "kept at least"):
        assert title in titles
    names = {title.text for svg in drawn for title in svg.iter("title")}
    assert {"final_loss", "base_loss", "even", "odd", "macro"} <= names
    assert main(["train", "plot", str(tmp_path / "nowhere")]) == 2
    assert "nowhere" in capsys.readouterr().err


def test_tensorboard_has_the_same_figures(tmp_path: Path) -> None:
    """An optional writer that fails must say what to install; one that works must not lag."""
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    lines = trained(tmp_path, tensorboard=True)
    events = reader.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    last = next(line for line in reversed(lines) if "loss" in line)
    assert events.Scalars("loss")[-1].value == pytest.approx(last["loss"])
    assert "evaluation/workloads/even/acceptance_length" in events.Tags()["scalars"]
    assert dict(scalars({"step": 3, "a": {"b": [0.5, 0.25]}})) == {"a/b/1": 0.5, "a/b/2": 0.25}


def test_without_tensorboard_the_remedy_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ModuleNotFoundError out of torch says nothing of the extra."""
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(TrainingError, match=r"domino-serve\[tensorboard\]"):
        trained(tmp_path, tensorboard=True)


def test_verify_tells_whole_from_damaged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A flipped bit in a moment resumes without any sign and trains a worse draft."""
    runs.session(tmp_path).run(lambda _: None)
    assert main(["train", "verify", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "iter_0000006 whole\niter_0000012 whole\n"
    file = tmp_path / "iter_0000006" / checkpoint.OPTIMIZER
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    assert main(["train", "verify", str(tmp_path)]) == 1
    assert "iter_0000006 damaged: optimizer.safetensors" in capsys.readouterr().out
    (tmp_path / "iter_0000012" / checkpoint.META).unlink()
    assert main(["train", "verify", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert "iter_0000012, which is damaged" in error and "iter_0000006" in error
    assert main(["train", "verify", str(tmp_path / "nowhere")]) == 2


def test_a_diverged_run_stops_and_keeps_the_good_checkpoint(tmp_path: Path) -> None:
    """NaN weights under the tracker cost the run; going on costs the night."""
    session = runs.session(tmp_path, log_interval=1, save_interval=1, steps=20)
    session.run(lambda _: None, until=6)
    resumed = runs.session(tmp_path, log_interval=1, save_interval=1, steps=20)
    with torch.no_grad():
        resumed.trainer.masters["fc.weight"].fill_(torch.nan)
    with pytest.raises(TrainingError, match=r"not finite up to step 9, kept in .*diverged_0000009"):
        resumed.run(lambda _: None)
    assert (tmp_path / "diverged_0000009" / checkpoint.MODEL).is_file()
    assert (tmp_path / checkpoint.TRACKER).read_text() == "6\n"


def test_the_step_that_compiles_is_no_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A minute of compiling told as the speed makes a run of an hour one of days."""
    now = [100.0]
    monkeypatch.setattr("training.watch.time.monotonic", lambda: now[0])
    speed = Speed(20, 120)
    for seconds, step, left in ((60.0, 21, 99 * 60.0), (0.5, 22, 98 * 0.5), (0.5, 23, 97 * 0.5)):
        now[0] += seconds
        assert speed.eta_s(step) == pytest.approx(left)
    assert speed.first_s == 60.0 and speed.steps_per_s(23) == pytest.approx(2.0)


def test_a_run_tells_its_first_step(tmp_path: Path) -> None:
    """Nothing until log_interval looks like a hang on a slow machine."""
    told: list[str] = []
    runs.session(tmp_path, steps=3, log_interval=3).run(told.append)
    assert told[0].startswith("step 1 is done in ") and told[1].startswith("step 3/3 ")
