"""A GPU whose memory does not suffice: the start is refused, and told which setting to lower."""

import gc
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from serving.options import OptionError
from tests.engines import engines
from tests.tiny_models import SHAPE, write_target
from verify_service.config import VerifyConfig
from verify_service.load import load

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
BLOCK = 2**21  # what the allocator takes from the device at least


@pytest.fixture(autouse=True)
def all_memory_afterwards() -> Iterator[None]:
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)


def leave(more: int) -> None:
    """Lets this process take so many bytes more of the GPU, and no others."""
    gc.collect()
    torch.cuda.empty_cache()
    total = torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + more) / total)


def on_gpu(target: Path, **options: int) -> VerifyConfig:
    return VerifyConfig(target=target, device="cuda:0", page_size=16, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("inner", "options", "named"),
    [
        (40000, {}, "dtype"),
        (80, {"max_sequences": 64}, "max_sequences"),
        (80, {"kv_tokens": 10**10}, "kv_tokens"),
    ],
)
def test_too_little_memory_names_the_setting(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    inner: int,
    options: dict[str, int],
    named: str,
) -> None:
    """torch's own message names none, and comes from whatever allocates last."""
    monkeypatch.setitem(SHAPE, "intermediate_size", inner)
    write_target("qwen3", tmp_path)
    if named != "kv_tokens":
        leave(BLOCK)
    with pytest.raises(OptionError) as refused:
        load(on_gpu(tmp_path, **options))
    assert refused.value.field == named, refused.value


def test_the_start_tells_time_and_memory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What graphs take of memory and of the start cannot be seen otherwise."""
    write_target("qwen3", tmp_path)
    with caplog.at_level(logging.INFO), engines(tmp_path, None, device="cuda:0"):
        pass
    assert "GiB free after the weights; steps take" in caplog.text
    assert "captured " in caplog.text and " s, " in caplog.text
