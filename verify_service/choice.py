"""Logits of a step in, the target's choices out: stop ids masked, then argmax or a draw."""

from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from domino_kernels.argmax import argmax
from verify_service.sampling import SamplingParams, sample
from verify_service.scheduler import Work
from verify_service.sequence import Chosen


def choose(logits: Tensor, work: Seq[Work], last: Tensor) -> list[Chosen]:
    """logits [sum of choices, vocab] in order of `work`; overwrites those of masked ids.

    last [items, hidden]: the hidden state of each item's last position, which is no number as soon
    as any position before it is none.
    """
    rows, first = [], 0
    for item in work:
        rows.append(slice(first, first + item.choices))
        first += item.choices
        _mask_stop_ids(logits[rows[-1]], item)
    best = argmax(logits)
    usable = _usable(logits, best, last, rows)
    parts = list(zip(work, rows, usable, strict=True))
    _draw(best, logits, [(item, own) for item, own, good in parts if good])
    ids: list[int] = best.tolist()
    return [
        _chosen(item, ids[own], logits[own]) if good else Chosen(ids=[], usable=False)
        for item, own, good in parts
    ]


def _usable(logits: Tensor, best: Tensor, last: Tensor, rows: Seq[slice]) -> list[bool]:
    """Per item, whether it has numbers to choose by; the argmax of a row with a NaN is -1."""
    top = logits.gather(-1, best.clamp(min=0)[:, None])[:, 0]
    tops: list[bool] = (top.isfinite() & (best >= 0)).tolist()
    states: list[bool] = last.isfinite().all(-1).tolist()
    return [state and all(tops[own]) for state, own in zip(states, rows, strict=True)]


def _mask_stop_ids(logits: Tensor, item: Work) -> None:
    """Rules the stop ids out wherever the request has not got its min_tokens yet."""
    request = item.sequence.request
    missing = request.min_tokens - item.sequence.num_generated
    if missing > 0 and request.stop_ids:
        logits[:missing, sorted(request.stop_ids)] = -torch.inf


def _draw(best: Tensor, logits: Tensor, parts: Seq[tuple[Work, slice]]) -> None:
    """Replaces the argmax in the rows of sequences that sample."""
    drawn: list[int] = []
    params: list[SamplingParams] = []
    positions: list[int] = []
    for item, own in parts:
        if sampling := item.sequence.request.sampling:
            end = item.start + len(item.ids) + 1
            drawn += range(own.start, own.stop)
            params += [sampling] * item.choices
            positions += range(end - item.choices, end)
    if drawn:
        best[drawn] = sample(logits[drawn], params, positions)


def _chosen(item: Work, ids: list[int], logits: Tensor) -> Chosen:
    if not item.sequence.wants_logprobs:
        return Chosen(ids=ids)
    table = logits.double().log_softmax(-1)
    own = item.ids[1:]
    return Chosen(
        ids=ids,
        logprobs=table[range(len(ids)), ids].tolist(),
        id_logprobs=table[range(len(own)), own].tolist(),
    )
