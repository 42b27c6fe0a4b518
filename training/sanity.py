"""Features against transformers before a run: shifted or wrong layers cost acceptance silently."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch.nn import functional as F

from training.errors import TrainingError
from training.features import Features
from training.target import BatchTarget

# Of the mean over tokens: bfloat16 costs 1e-4, single tokens up to 1e-3; the next layer is at 0.98.
LEAST_COSINE = 0.998


def check_features(
    features: Features, target: BatchTarget, folder: Path, taps: Sequence[int]
) -> dict[str, float]:
    """The least mean cosine of any layer over a document, and how often the target's argmax is the
    next supervised token; raises TrainingError when a layer's cosine is too low.

    Agreement is only reported: answers that the target did not write itself agree less.
    """
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()  # ours is the run's
    batch, (row, first, length) = features.empty(1), features.a_document()
    features.fill(batch, torch.tensor([row]))
    part = slice(first, first + length)
    ids = batch.ids[:, part]
    oracle = AutoModelForCausalLM.from_pretrained(folder, dtype=target.dtype)
    oracle = oracle.to(target.device).eval()
    with torch.no_grad():
        found = oracle(ids, output_hidden_states=True)
    hidden, least = target.config.hidden_size, 1.0
    for i, layer in enumerate(taps):
        ours = batch.features[:, part, i * hidden : (i + 1) * hidden].float()
        # hidden_states[0] is the embedding: layer i's output is one further on.
        theirs = found.hidden_states[layer + 1].float()
        cosine = float(F.cosine_similarity(ours, theirs, dim=-1).mean())
        if not cosine >= LEAST_COSINE:
            raise TrainingError(
                f"features of layer {layer} are not those of transformers (cosine {cosine:.4f}, "
                f"at least {LEAST_COSINE}); the target's folder or the tapped layers are wrong"
            )
        least = min(least, cosine)
    supervised = batch.supervised[:, part][:, 1:]
    right = (found.logits[:, :-1].argmax(-1) == ids[:, 1:])[supervised]
    return {"least_cosine": least, "argmax_agreement": float(right.float().mean())}
