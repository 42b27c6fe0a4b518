"""What cannot be served is refused at start: one line naming field, value and remedy, no traceback.

The refusals that need a whole process run one; those of checkpoints share the way out with them.
"""

import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import draft_service.load
import verify_service.load
from domino_cli.stack import flags
from draft_service.config import DraftServiceConfig
from serving.device import open_device
from serving.errors import CheckpointError
from serving.options import OptionError
from tests.recorded_models import DFLASH, DOMINO_SHIFT, HIDDEN, TARGET
from tests.services.checkpoints import draft_copy
from tests.services.processes import ended
from verify_service.config import VerifyConfig

LOADERS: list[tuple[Any, Any]] = [
    (verify_service.load.load, VerifyConfig),
    (draft_service.load.load, DraftServiceConfig),
]


def refusal(module: str, exit_code: int, **options: object) -> str:
    """The last line that a process with these options leaves."""
    given = {"target": TARGET, "draft": DOMINO_SHIFT} | options
    code, log = ended(module, flags(given))
    assert code == exit_code
    faults = [line for line in log if "Traceback" in line or " ERROR " in line]
    assert not faults, "one line tells what is wrong"
    return log[-1]


def test_a_draft_of_another_size_ends_the_process(tmp_path: Path) -> None:
    """A draft that does not fit must not get as far as a low acceptance."""
    draft = draft_copy(tmp_path, config={"hidden_size": 80})
    line = refusal("draft_service", 1, draft=draft)
    assert f"{draft}/config.json: hidden_size is 80: the target has {HIDDEN}" in line


def test_a_truncated_file_ends_the_process(tmp_path: Path) -> None:
    """An interrupted download would otherwise fail at the first tensor behind the cut, or never."""
    file = draft_copy(tmp_path) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    line = refusal("verify_service", 1, draft=tmp_path)
    assert f"{file}: truncated or damaged" in line


def test_a_folder_without_config_ends_the_process(tmp_path: Path) -> None:
    """The commonest mistake: the wrong folder."""
    command = [sys.executable, "-m", "verify_service", "--target", str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    (line,) = result.stderr.splitlines()
    assert f"{tmp_path}: config.json is missing" in line
    assert (result.returncode, result.stdout) == (1, "")


def test_a_port_in_use_ends_the_process() -> None:
    """Two services must not share a port silently, and the remedy is told."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = refusal("draft_service", 1, port=port)
    assert f"cannot listen on 127.0.0.1:{port}" in line
    assert "--port" in line


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has the device")
@pytest.mark.parametrize("module", ["verify_service", "draft_service"])
def test_a_device_that_is_not_there_ends_the_process(module: str) -> None:
    """A traceback of torch's says nothing about the option to change."""
    line = refusal(module, 1, device="cuda")
    assert "option device: 'cuda' cannot be used" in line
    assert "cpu always works" in line


@pytest.mark.parametrize("name", ["tpu", "meta", "", "cpu:x", "nonsense"])
def test_a_device_that_is_none_is_refused_in_a_line(name: str) -> None:
    """Prevents torch's list of twenty devices of which none can be served, and tensors on "meta"
    that hold nothing."""
    with pytest.raises(OptionError, match=f"option device: '{name}' cannot be used") as told:
        open_device(name)
    assert "privateuseone" not in str(told.value) and "cpu" in told.value.remedy


def test_a_width_above_the_drafts_limit_ends_the_process() -> None:
    """Told once the draft's config is read, and not after minutes in which weights are read and
    graphs of that width are made: here a cache that cannot be had would be told first."""
    line = refusal("verify_service", 1, width=10, kv_tokens=10**14)
    assert "option width: 10 is not possible: this draft allows 1 to 9" in line


def test_a_width_without_a_draft_ends_the_process() -> None:
    """It would be ignored: plain decoding where speculation was meant."""
    with pytest.raises(OptionError, match="option width: 4 needs a draft: give --draft"):
        VerifyConfig(target=TARGET, width=4)
    assert VerifyConfig(target=TARGET, width=1).width == 1


def test_candidates_without_a_domino_head_end_the_process() -> None:
    """They would be ignored: DFlash corrects nothing."""
    config = DraftServiceConfig(target=TARGET, draft=DFLASH, threads=1, domino_candidates="64")
    with pytest.raises(OptionError, match="domino_candidates: '64' needs a draft with"):
        draft_service.load.load(config)


def test_a_cache_that_does_not_fit_names_its_option() -> None:
    """An out-of-memory traceback does not say which option asked for the memory."""
    for load, config in LOADERS:
        with pytest.raises(OptionError, match=r"option kv_tokens: 10{14} exceeds"):
            load(config(target=TARGET, draft=DOMINO_SHIFT, threads=1, kv_tokens=10**14))


@pytest.mark.parametrize(
    ("module", "options", "expected"),
    [
        ("verify_service", {"page_size": 0}, "option page_size: 0 must be at least 1"),
        ("draft_service", {"max_sessions": 0}, "option max_sessions: 0 must be at least 1"),
        ("draft_service", {"port": 70000}, "option port: 70000 must be in 0..65535"),
        ("verify_service", {"draft_timeout_s": 0}, "option draft_timeout_s: 0.0 must be above 0"),
        ("verify_service", {"draft_step_s": "nan"}, "option draft_step_s: nan must be above 0"),
        ("draft_service", {"dtype": "int8"}, "argument --dtype: invalid choice: 'int8'"),
        ("verify_service", {"widht": 8}, "unrecognized arguments: --widht 8"),
    ],
)
def test_impossible_options_end_the_process(
    module: str, options: dict[str, object], expected: str
) -> None:
    """A typo that is ignored runs something else than what was asked for."""
    assert expected in refusal(module, 2, **options)


@pytest.mark.parametrize("module", ["verify_service", "draft_service"])
def test_an_unknown_key_of_the_config_file_ends_the_process(module: str, tmp_path: Path) -> None:
    """Files keep the keys of older versions; silence would keep their meaning lost."""
    file = tmp_path / "service.toml"
    file.write_text("max_session = 8\n")
    assert f"option max_session: 8 is unknown in {file}" in refusal(module, 2, config=file)


def loaders_refuse(draft: Path) -> str:
    """What both services say to a draft, the same words."""
    said = set()
    for load, config in LOADERS:
        with pytest.raises(CheckpointError) as caught:
            load(config(target=TARGET, draft=draft, threads=1))
        said.add(str(caught.value))
    [message] = said
    assert str(draft) in message
    return message


@pytest.mark.parametrize(
    ("config", "nested", "field", "value"),
    [
        ({"vocab_size": 300}, {}, "vocab_size", "300"),
        ({}, {"target_layer_ids": [1, 9]}, "target_layer_ids[1]", "9"),
        ({}, {"target_layer_ids": [1, 5]}, "target_layer_ids[1]", "5"),
        ({"intermediate_size": None}, {}, "intermediate_size", "null"),
        ({}, {"shift_label": None}, "shift_label", "null"),
        ({}, {"mask_token_id": 257}, "mask_token_id", "257"),
    ],
)
def test_a_draft_config_that_does_not_fit(
    tmp_path: Path, config: dict[str, Any], nested: dict[str, Any], field: str, value: str
) -> None:
    """Each of these loads in a lenient reader, and then drafts badly."""
    said = loaders_refuse(draft_copy(tmp_path, config=config, nested=nested))
    assert field in said
    assert value in said.partition(field)[2]


NORM = "layers.1.self_attn.k_norm.weight"
GRU = "prefix_gru.weight_hh_l0"


@pytest.mark.parametrize(
    ("tensors", "expected"),
    [
        ({"fc.weight": None}, ["fc.weight", "missing", "(64, 192)"]),
        ({NORM: None}, [NORM, "missing", "(16,)"]),
        ({NORM: torch.ones(8)}, [NORM, "(8,)", "(16,)"]),
        ({GRU: torch.ones(99, 32)}, [GRU, "(99, 32)", "(96, 32)"]),
        ({"prefix_gru.bias_hh_l0": torch.ones(96)}, ["unknown", "prefix_gru.bias_hh_l0"]),
        ({"layers.2.mlp.up_proj.weight": torch.ones(1)}, ["unknown", "layers.2.mlp.up_proj"]),
    ],
)
def test_a_draft_file_that_does_not_fit(
    tmp_path: Path, tensors: dict[str, Tensor | None], expected: list[str]
) -> None:
    """A part that is missing, or left unread, changes what is drafted without any error."""
    said = loaders_refuse(draft_copy(tmp_path, tensors=tensors))
    assert [part for part in expected if part not in said] == []


def test_a_head_that_the_config_does_not_name(tmp_path: Path) -> None:
    """A Domino checkpoint whose config lost projector_type would be served as plain DFlash."""
    said = loaders_refuse(draft_copy(tmp_path, nested={"projector_type": None}))
    assert "projector_type" in said
    assert "embed_proj.0.weight" in said


def test_constants_in_the_file_are_left_alone(tmp_path: Path) -> None:
    """Published checkpoints hold such buffers, which follow from the config."""
    extra = {f"{p}rotary_emb.inv_freq": torch.ones(8) for p in ("", "layers.0.self_attn.")}
    draft = draft_copy(tmp_path, tensors={**extra})
    for load, config in LOADERS:
        load(config(target=TARGET, draft=draft, threads=1))
