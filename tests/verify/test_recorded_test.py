"""A draft that says which target it was trained for is refused by every other, before serving."""

from pathlib import Path
from typing import Literal

import pytest
import torch
from safetensors.torch import load_file, save_file

from serving.errors import CheckpointError
from serving.weight_files import SELF_TEST_FILE
from tests.recorded_models import TARGET
from tests.services.checkpoints import draft_copy
from tests.tiny_models import write_draft, write_target
from verify_service.config import VerifyConfig
from verify_service.load import load
from verify_service.record_test import main, record

Dtype = Literal["float32", "bfloat16", "float16"]


def config(target: Path, draft: Path, dtype: Dtype = "float32") -> VerifyConfig:
    return VerifyConfig(
        target=target,
        draft=draft,
        dtype=dtype,
        threads=1,
        kv_tokens=64,
        page_size=4,
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_its_own_target_is_taken_in_every_dtype(tmp_path: Path, dtype: Dtype) -> None:
    """Rounding must not be taken for another target."""
    draft = draft_copy(tmp_path)
    # Under another name: every *.safetensors file but the self-test's is weights then.
    (draft / "model.safetensors").rename(draft / "weights.safetensors")
    assert main(["--target", str(TARGET), "--draft", str(draft)]) == 0
    load(config(TARGET, draft, dtype))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_another_target_of_equal_shapes_is_refused(tmp_path: Path, dtype: Dtype) -> None:
    """Everything fits, nothing is accepted: the one mistake that no shape or hash shows."""
    own, other, draft = (tmp_path / name for name in ("own", "other", "draft"))
    write_target("qwen3", own)
    other.mkdir()
    for name in ("config.json", "generation_config.json"):
        (other / name).write_bytes((own / name).read_bytes())
    generator = torch.Generator().manual_seed(1)
    weights = load_file(own / "model.safetensors")
    shuffled = {
        n: w.flatten()[torch.randperm(w.numel(), generator=generator)].view(w.shape)
        for n, w in weights.items()
    }
    save_file(shuffled, other / "model.safetensors", metadata={"format": "pt"})
    write_draft(own, draft, block_size=4, domino=True, shift=True)
    load(config(other, draft, dtype))
    record(own, draft)
    load(config(own, draft, dtype))
    with pytest.raises(CheckpointError, match="trained for another target; give that one") as said:
        load(config(other, draft, dtype))
    assert f"{draft / SELF_TEST_FILE}: the target's rows are" in str(said.value)


@pytest.mark.parametrize("damage", ["no safetensors", "no rows", "ids beyond", "other rows"])
def test_a_damaged_file_is_named(tmp_path: Path, damage: str) -> None:
    """A traceback at start would not say that a file which can be removed is to blame."""
    draft = draft_copy(tmp_path)
    file = record(TARGET, draft)
    stored = load_file(file)
    if damage == "no safetensors":
        file.write_text("?")
    elif damage == "no rows":
        save_file({"ids": stored["ids"]}, file)
    elif damage == "ids beyond":
        save_file(stored | {"ids": stored["ids"] + 250}, file)
    else:
        save_file(stored | {"rows": stored["rows"][:, :8].contiguous()}, file)
    with pytest.raises(CheckpointError, match=r"self_test\.safetensors: .*remove"):
        load(config(TARGET, draft))


@pytest.mark.embedded
def test_the_embedded_draft_says_its_target(
    embedded_target: Path, embedded_draft: Path, tmp_path: Path
) -> None:
    """A draft trained anew needs its file written anew."""
    kept = load_file(embedded_draft / SELF_TEST_FILE)
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).symlink_to(embedded_draft / name)
    again = load_file(record(embedded_target, tmp_path))
    assert torch.equal(kept["ids"], again["ids"])
    assert (kept["rows"] - again["rows"]).abs().max() < 1e-3
