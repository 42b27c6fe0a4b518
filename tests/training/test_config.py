"""A run's settings: what is unknown, of another type or impossible is refused by name."""

from pathlib import Path
from typing import Any

import pytest
import torch

from serving.option_type import OptionError
from tests.training import runs
from training.config import TrainConfig, load_config
from training.dataset import Document
from training.errors import TrainingError
from training.opening import open_session

CONFIGS = Path(__file__).parents[2] / "configs"
BASE = 'target = "t"\ndata = "d"\noutput = "o"\nmask_token_id = 5\nsteps = 10\n'


def load(tmp_path: Path, *overrides: str, text: str = BASE) -> TrainConfig:
    file = tmp_path / "run.toml"
    file.write_text(text)
    return load_config(file, overrides)


def test_overrides_win_and_have_their_types(tmp_path: Path) -> None:
    """An override read as text would train with the file's value, or not at all."""
    config = load(tmp_path, "lr=1e-3", "target=/x/y", "rows=4", "save_optimizer=false")
    assert (config.lr, config.target, config.rows) == (1e-3, Path("/x/y"), 4)
    assert config.save_optimizer is False


@pytest.mark.parametrize(
    ("override", "field"),
    [
        ("learning_rate=1", "learning_rate"),
        ("rows=two", "rows"),
        ("rows=1.5", "rows"),
        ("block_size=1", "block_size"),
        ("anchors=0", "anchors"),
        ("gamma=0", "gamma"),
        ("gamma=-1.0", "gamma"),
        ("steps=-3", "steps"),
        ("base_steps=-1", "base_steps"),
        ("base_start=1.5", "base_start"),
        ("lr=0.0", "lr"),
        ("lr=inf", "lr"),
        ("beta2=1.0", "beta2"),
        ("weight_decay=-1", "weight_decay"),
        ("intermediate_size=0", "intermediate_size"),  # no missing value
        ("scored_slots=0", "scored_slots"),
        ("scored_slots=17", "scored_slots"),
        ("anchors=1025", "anchors"),  # of 1024 tokens
        ("row_length=40000", "row_length"),
        ("stpes=3", "did you mean steps"),
        ("optimizer=sgd", "optimizer"),
        ("late_every=3", ""),
        ("rows", "override"),
    ],
)
def test_impossible_settings_are_refused_by_name(tmp_path: Path, override: str, field: str) -> None:
    """A run of hours with a mistyped key trains something else."""
    more = ["scored_slots=6"] if override.startswith("late") else []
    if not field:
        field = "late_every"
    with pytest.raises(OptionError, match=field):
        load(tmp_path, *more, override)


def test_null_and_zero_mean_different_things(tmp_path: Path) -> None:
    """`or` made an explicit 0 the default in a published trainer; null is no number either."""
    assert load(tmp_path, "base_steps=0").base_steps == 0
    assert load(tmp_path, "base_steps=null").base_steps is None
    assert load(tmp_path, "gamma=none").gamma is None
    assert load(tmp_path).gamma == 7.0
    assert load(tmp_path, "lr=null").lr == 6e-4  # a default, where none is no value
    with pytest.raises(OptionError, match="steps"):
        load(tmp_path, "steps=null")
    with pytest.raises(OptionError, match=r"data .*steps"):
        load(tmp_path, text='target = "t"\noutput = "o"\n')


def test_without_a_mask_id_one_is_taken_that_the_data_lacks(tmp_path: Path) -> None:
    """Text that has the id is read as an open position; two runs must take the same one."""
    made = runs.session(tmp_path / "run", mask_token_id=None, steps=1)
    made.run(lambda _: None)
    assert made.draft_json["dflash_config"]["mask_token_id"] == 256  # the data has 0 to 239
    assert runs.session(tmp_path / "run", mask_token_id=None, steps=1).trainer.step == 1
    with pytest.raises(TrainingError, match="mask_token_id"):
        runs.session(tmp_path / "run", mask_token_id=250, steps=1)
    everything = [Document(torch.arange(257, dtype=torch.int32), torch.ones(257) > 0)]
    config = runs.config(tmp_path / "full", mask_token_id=None, row_length=257)
    with pytest.raises(TrainingError, match="all 257 ids"):
        open_session(config, lambda _: None, documents=everything)


@pytest.mark.parametrize("change", [{"mask_token_id": 257}, {"taps": 4}, {"mask_token_id": 7}])
def test_a_draft_that_cannot_belong_to_the_target_is_refused(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    """A mask id that the data has is read as an open position (AutoModel #2461)."""
    with pytest.raises(TrainingError, match=next(iter(change))):
        runs.session(tmp_path, **change)


@pytest.mark.parametrize("file", sorted(CONFIGS.glob("*.toml")), ids=lambda file: file.stem)
def test_the_configs_of_the_project_are_valid(file: Path) -> None:
    """A setting renamed in the trainer alone breaks the first command that a user tries."""
    assert load_config(file, []).steps > 0
