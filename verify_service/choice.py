"""Logits of a step in, the target's choices out: stop ids masked, then argmax or a draw."""

from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from verify_service.sampling import SamplingParams, sample
from verify_service.scheduler import Work
from verify_service.sequence import Chosen
from verify_service.vocabulary import Vocabulary


def choose(
    logits: Tensor, work: Seq[Work], sound: Seq[bool], vocabulary: Vocabulary
) -> list[Chosen]:
    """logits [sum of choices, own] in order of `work`; overwrites those of masked ids.

    sound: per item, whether the hidden state of its last position is a number, which it is not as
    soon as that of any position before it is none.
    """
    rows, first = [], 0
    for item in work:
        rows.append(slice(first, first + item.choices))
        first += item.choices
        _mask_stop_ids(logits[rows[-1]], item, vocabulary.own)
    best, top = vocabulary.best(logits)
    tops: list[bool] = (top.isfinite() & (best >= 0)).tolist()
    usable = [state and all(tops[own]) for state, own in zip(sound, rows, strict=True)]
    parts = [part for part in zip(work, rows, usable, strict=True) if part[2]]
    drawn = [(item, own) for item, own, _ in parts if item.sequence.request.sampling]
    told = [own for item, own, _ in parts if item.sequence.wants_logprobs]
    whole = _whole(logits, [*(own for _, own in drawn), *told], vocabulary)
    _draw(best, whole, drawn)
    ids: list[int] = best.tolist()
    return [
        _chosen(item, ids[own], whole, own) if good else Chosen(ids=[], usable=False)
        for item, own, good in zip(work, rows, usable, strict=True)
    ]


def finite(states: Tensor) -> list[bool]:
    """states [n, hidden] -> whether each row is all numbers."""
    found: list[bool] = states.isfinite().all(-1).tolist()
    return found


def _whole(logits: Tensor, needed: Seq[slice], vocabulary: Vocabulary) -> Tensor:
    """The logits of all ids; where other ranks have some of them, in the needed rows only."""
    if vocabulary.ranks.size == 1 or not needed:
        return logits
    rows = sorted({row for own in needed for row in range(own.start, own.stop)})
    whole = logits.new_empty(len(logits), vocabulary.size)
    whole[rows] = vocabulary.whole(logits[rows])
    return whole


def _mask_stop_ids(logits: Tensor, item: Work, own: slice) -> None:
    """Rules the stop ids out wherever the request has not got its min_tokens yet."""
    request = item.sequence.request
    missing = request.min_tokens - item.sequence.num_generated
    ids = sorted(i - own.start for i in request.stop_ids if own.start <= i < own.stop)
    if missing > 0 and ids:
        logits[:missing, ids] = -torch.inf


def _draw(best: Tensor, logits: Tensor, parts: Seq[tuple[Work, slice]]) -> None:
    """Replaces the argmax in the rows of sequences that sample."""
    drawn: list[int] = []
    params: list[SamplingParams] = []
    positions: list[int] = []
    for item, own in parts:
        sampling = item.sequence.request.sampling
        assert sampling is not None, "given are the items that sample"
        end = item.start + len(item.ids) + 1
        drawn += range(own.start, own.stop)
        params += [sampling] * item.choices
        positions += range(end - item.choices, end)
    if drawn:
        best[drawn] = sample(logits[drawn], params, positions)


def _chosen(item: Work, ids: list[int], logits: Tensor, own: slice) -> Chosen:
    if not item.sequence.wants_logprobs:
        return Chosen(ids=ids)
    table = logits[own].double().log_softmax(-1)
    proposed = item.ids[1:]
    return Chosen(
        ids=ids,
        logprobs=table[range(len(ids)), ids].tolist(),
        id_logprobs=table[range(len(proposed)), proposed].tolist(),
    )
