"""The fixed block that draft and verify compute each on their own before they work together.

Fingerprints compare what is stored, this compares what comes out: the verify service's projection
of known rows must be what the draft's own copies of the weights give. Imported by engines only.
"""

from typing import Final

import torch
from torch import Tensor

from serving.checkpoint import Checkpoint
from serving.errors import Mismatch
from serving.fingerprint import SAME_MODELS
from serving.target_config import EMBEDDING, TargetConfig

NUM_ROWS: Final = 8
# Largest distance of two computations of the same rows, relative to their length; rows of other
# weights are more than 1 apart.
TOLERANCE: Final = {torch.float32: 1e-3, torch.float16: 0.02, torch.bfloat16: 0.1}


def self_test_block(checkpoint: Checkpoint, config: TargetConfig, taps: int) -> list[Tensor]:
    """What stands for the outputs of the tapped layers: `taps` tensors [NUM_ROWS, hidden], float32.

    Embeddings of ids all over the target's vocabulary, in another order for each tap.
    """
    from safetensors import safe_open

    stored = checkpoint.require(EMBEDDING, (config.vocab_size, config.hidden_size))
    ids = [i * config.vocab_size // NUM_ROWS for i in range(NUM_ROWS)]
    with safe_open(stored.file, framework="pt") as file:
        table = file.get_slice(stored.name)
        rows = torch.cat([table[i : i + 1] for i in ids]).float()
    return [rows.roll(tap, 0) for tap in range(taps)]


def require_same_rows(expected: Tensor, actual: Tensor) -> None:
    """Raises Mismatch unless both are the self-test's rows [NUM_ROWS, hidden], up to rounding."""
    limit = TOLERANCE[actual.dtype]
    if expected.shape != actual.shape:
        shapes = list(expected.shape), list(actual.shape)
        raise Mismatch("self_test_rows", *shapes, SAME_MODELS)
    distance = float((expected - actual.float()).norm() / expected.norm())
    if not distance <= limit:  # NaN is no match either
        raise Mismatch(
            "self_test_rows",
            f"rows within {limit:g} of the draft's own",
            f"rows {distance:.3g} away",
            SAME_MODELS + ", of one release",
        )
