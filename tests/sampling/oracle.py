"""transformers as the oracle of next-token distributions, and the chi-square test against it."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from transformers import (
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

Context = tuple[int, ...]
Distribution = Mapping[int, float]
MIN_EXPECTED = 5  # rarer outcomes are counted together, as the chi-square approximation wants


class Oracle:
    """Next-token distributions of transformers' model, warped by transformers' processors."""

    def __init__(self, model: Any, temperature: float, top_k: int, top_p: float) -> None:
        self._model = model
        self._warpers = LogitsProcessorList(
            [TemperatureLogitsWarper(temperature), TopKLogitsWarper(top_k), TopPLogitsWarper(top_p)]
        )
        self._known: dict[Context, Distribution] = {}

    def after(self, context: Context) -> Distribution:
        """Probability of each id that can follow."""
        if context not in self._known:
            ids = torch.tensor([context])
            with torch.inference_mode():
                scores = self._model(ids).logits[:, -1].double()
            found = self._warpers(ids, scores).softmax(-1)[0]
            self._known[context] = {int(i): float(found[i]) for i in found.nonzero()}
        return self._known[context]

    def best(self, context: Context) -> int:
        """The most probable id."""
        distribution = self.after(context)
        return max(distribution, key=lambda i: distribution[i])


def given(distribution: Distribution, ids: set[int]) -> dict[int, float]:
    """The distribution under the condition that the outcome is one of `ids`."""
    mass = sum(p for i, p in distribution.items() if i in ids)
    return {i: p / mass for i, p in distribution.items() if i in ids}


def p_value(groups: list[tuple[Counter[int], Distribution]]) -> float:
    """Chance of counts this far from their distributions, all groups together."""
    statistic, freedom = 0.0, 0
    for counts, distribution in groups:
        assert counts.keys() <= distribution.keys(), "an impossible outcome was drawn"
        total = counts.total()
        rare = [i for i, p in distribution.items() if p * total < MIN_EXPECTED]
        cells = [(counts[i], distribution[i]) for i in distribution.keys() - rare]
        cells.append((sum(counts[i] for i in rare), sum(distribution[i] for i in rare)))
        used = [(seen, p * total) for seen, p in cells if p * total >= MIN_EXPECTED / 5]
        statistic += sum((seen - expected) ** 2 / expected for seen, expected in used)
        freedom += max(len(used) - 1, 0)
    halves = torch.tensor([freedom / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(halves[0], halves[1]))
