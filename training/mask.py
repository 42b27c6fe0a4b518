"""The id of a block's open positions: data in, an id that it never has out."""

from dataclasses import replace

import torch
from torch import Tensor

from training.config import TrainConfig
from training.errors import TrainingError
from training.ranks import Ranks


def with_mask(
    config: TrainConfig, ids: Tensor, vocab_size: int, ranks: Ranks, device: torch.device
) -> TrainConfig:
    """The config with its mask id, or with the highest one that no rank's `ids` have.

    Raises TrainingError where the data has the id, or has them all.
    """
    mask = config.mask_token_id
    counts = torch.bincount(ids.flatten(), minlength=vocab_size).to(device, torch.float64)
    ranks.add_up(counts)
    if mask is None:
        free = (counts == 0).nonzero().flatten()
        if not len(free):
            raise TrainingError(f"mask_token_id: the data has all {vocab_size} ids of the target")
        return replace(config, mask_token_id=int(free[-1]))
    if mask < len(counts) and counts[mask]:
        # Data that has it would be read as open.
        remedy = "take another, or none for one that it never has"
        raise TrainingError(
            f"mask_token_id: {mask} is {int(counts[mask])} times in the data; {remedy}"
        )
    return config
