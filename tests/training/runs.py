"""Small runs on the recorded tiny target: configs, documents and sessions."""

from pathlib import Path
from typing import Any

import pytest
import torch

from serving.draft_config import DraftConfig
from tests.recorded_models import TARGET
from training.config import TrainConfig
from training.dataset import Document
from training.opening import open_session
from training.session import Session
from training.start import new_weights

# PyTorch's compiler warns of its own parts, of gradients it looks at while it traces, and of
# float32 products that are to stay exact.
COMPILES = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore:TensorFloat32", "ignore:The .grad attribute"
)
MASK = 250
SMALL: dict[str, Any] = {
    **{"target": TARGET, "data": Path("unused"), "mask_token_id": MASK, "block_size": 8},
    **{"layers": 1, "taps": 3, "gru_hidden_dim": 32, "emb_dim": 16, "row_length": 64},
    **{"rows": 2, "anchors": 16, "steps": 12, "lr": 3e-3, "log_interval": 4, "save_interval": 6},
}


def config(output: Path, **changes: Any) -> TrainConfig:
    """A run of a dozen steps."""
    return TrainConfig(**(SMALL | {"output": output} | changes))


def documents(count: int = 12) -> list[Document]:
    """Random tokens, the first few of each unsupervised."""
    generator = torch.Generator().manual_seed(3)
    made = []
    for i in range(count):
        ids = torch.randint(0, 240, (20 + 3 * i,), generator=generator, dtype=torch.int32)
        made.append(Document(ids, torch.arange(len(ids)) >= 4))
    return made


def session(output: Path, **changes: Any) -> Session:
    """Opened on `documents`."""
    return open_session(config(output, **changes), lambda _: None, documents=documents())


def session_weights(draft: DraftConfig) -> dict[str, torch.Tensor]:
    """Random weights of a draft of the tiny target."""
    return new_weights(draft, 0, torch.ones(draft.hidden_size))
