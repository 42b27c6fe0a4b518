"""What --data-plane refuses: planes that a service does not have, or must not take."""

from pathlib import Path

import pytest

from draft_service.config import DraftServiceConfig
from serving.option_type import OptionError
from serving.transport.plane import check_name
from tests.recorded_models import DOMINO_SHIFT, TARGET
from tests.services.served import serve_draft, serve_verify
from verify_service.config import VerifyConfig


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("in-process", "both engines in one process"),
        ("rdma", "must be one of auto, inline, shm, cuda-ipc, nccl"),
    ],
)
def test_planes_that_services_do_not_have_are_refused_by_name(name: str, remedy: str) -> None:
    """Whoever read of a plane must learn why it is not to be had, not that it is misspelt."""
    with pytest.raises(OptionError, match=remedy):
        check_name(name)
    with pytest.raises(OptionError, match=remedy), serve_verify(data_plane=name):
        pass
    with pytest.raises(OptionError, match=remedy), serve_draft(data_plane=name):
        pass


def test_gpu_memory_needs_a_gpu() -> None:
    """Quietly taking another plane would make a benchmark of the wrong one."""
    remedy = "data_plane: 'cuda-ipc' needs --device cuda, not cpu"
    with pytest.raises(OptionError, match=remedy), serve_draft(data_plane="cuda-ipc"):
        pass
    with pytest.raises(OptionError, match=remedy), serve_verify(data_plane="cuda-ipc"):
        pass
    assert VerifyConfig.__dataclass_fields__["data_plane"].default == "auto"


def test_nothing_is_sent_unencrypted_where_messages_are_not(tmp_path: Path) -> None:
    """Rows are made of what people write; TLS is there for that."""
    tls = {"tls_cert": tmp_path / "a.pem", "tls_key": tmp_path / "a.key"}
    remedy = "data_plane: 'nccl' sends rows unencrypted; with TLS take inline"
    for config in (VerifyConfig, DraftServiceConfig):
        with pytest.raises(OptionError, match=remedy):
            config(target=TARGET, draft=DOMINO_SHIFT, data_plane="nccl", **tls)  # type: ignore[arg-type]
