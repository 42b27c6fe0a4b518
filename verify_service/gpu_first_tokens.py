"""What follows prompts, chosen on the device: hidden states of a pass in, its answer out.

So a draft on the same device goes on from the end of a prompt as from any step, beside the
sequences that decode.
"""

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

import torch
from torch import Tensor

from domino_kernels.gpu.accept import greedy_accept, sampling_accept
from domino_kernels.gpu.hand_over import Verified
from domino_kernels.readback import Readback, sent
from verify_service.choice import choose
from verify_service.gpu_items import chosen_in_graph
from verify_service.gpu_target import GpuTarget
from verify_service.sampling import SamplingParams, knobs_of
from verify_service.scheduler import Work
from verify_service.sequence import Chosen
from verify_service.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstTokens:
    """answer: waits for them. verified: a row for each prompt that ends in the pass, as its last
    position leaves it; None where the host chooses, no prompt ends or no rows are kept."""

    answer: Callable[[], list[Chosen]]
    verified: Verified | None


def accepted(
    vocabulary: Vocabulary, logits: Tensor, ids: Tensor, counts: Tensor, positions: Tensor,
    knobs: Tensor | None,
) -> Tensor:  # fmt: skip
    """As `sampling_accept`, over all ranks. Without knobs nobody samples: it costs ranks less."""
    if knobs is not None:
        return sampling_accept(vocabulary.whole(logits), ids, counts, positions, knobs)
    highest = vocabulary.ranks.highest if vocabulary.ranks.size > 1 else None
    return greedy_accept(logits, ids, counts, first=vocabulary.own.start, highest=highest)


def first_tokens(
    target: GpuTarget, normed: Tensor, work: Seq[Work], table: Tensor | None, page_size: int
) -> FirstTokens:
    """normed [positions, hidden] of `work` in order, read before anything else is launched."""
    ends = list(accumulate(len(item.ids) for item in work))
    sound = _rows(normed, [end - 1 for end in ends]).isfinite().all(-1)
    asked = [row for item, end in zip(work, ends, strict=True)
             for row in range(end - item.choices, end)]  # fmt: skip
    if not asked:
        return FirstTokens(answer=partial(_read, Readback(sound.int()), work), verified=None)
    logits = target.logits(_rows(normed, asked))
    if any(not chosen_in_graph(item) or item.choices > 1 for item in work):
        return FirstTokens(
            answer=partial(_choose, logits, work, sound, target.vocabulary), verified=None
        )
    ending = [item for item in work if item.choices]
    at = [item.start + len(item.ids) - 1 for item in ending]
    slots = [slot for item, end in zip(ending, at, strict=True)
             for slot in item.sequence.slots(end, end + 1, page_size)]  # fmt: skip
    where = _aligned([at, slots], target.device)
    out = after(target.vocabulary, logits, where[0], [w.sequence.request.sampling for w in ending])
    told = Readback(torch.cat((sound.int(), out.flatten())))
    verified = None
    if table is not None:
        verified = Verified(out=out, positions=where[0], slots=where[1], rows=table)
    return FirstTokens(answer=partial(_read, told, work), verified=verified)


def after(
    vocabulary: Vocabulary, logits: Tensor, positions: Tensor, sampling: Seq[SamplingParams | None]
) -> Tensor:
    """logits [n, own] at positions [n] -> [n, 3] int32: 0 or -1 (no numbers), the token twice."""
    knobs = sent(knobs_of(sampling), positions.device) if any(sampling) else None
    ids, counts = _aligned([[0] * len(sampling), [1] * len(sampling)], positions.device)
    return accepted(vocabulary, logits, ids[:, None], counts, positions, knobs)


def beside(steps: Verified | None, count: int, prompts: Verified) -> Verified:
    """The first `count` sequences of a step, and prompts' ends behind them."""
    if not count:
        return prompts
    assert steps, "what a step leaves is looked at only where it is kept"
    width, more = steps.width, len(prompts.out)
    out = steps.out.new_zeros(count + more, width + 2)
    out[:count], out[count:, :3] = steps.out[:count], prompts.out
    index = out.new_zeros(2, count + more, width)
    for own, first, last in zip(index, (steps.positions, steps.slots),
                                (prompts.positions, prompts.slots), strict=True):  # fmt: skip
        own[:count], own[count:, 0] = first.view(-1, width)[:count], last
    positions, slots = index.flatten(1)
    return Verified(out=out, positions=positions, slots=slots, rows=prompts.rows)


@torch.inference_mode()
def _choose(logits: Tensor, work: Seq[Work], sound: Tensor, vocabulary: Vocabulary) -> list[Chosen]:
    return choose(logits, work, sound.tolist(), vocabulary)


def _rows(table: Tensor, rows: Seq[int]) -> Tensor:
    return table.index_select(0, sent(rows, table.device))


def _aligned(lists: Seq[Seq[int]], device: torch.device) -> Tensor:
    """[lists, n] int32, each where kernels compiled for aligned numbers can read it."""
    n = len(lists[0])
    padded = [[*numbers, *[0] * (-n % 4)] for numbers in lists]
    return sent(padded, device, torch.int32)[:, :n]


def _read(told: Readback, work: Seq[Work]) -> list[Chosen]:
    found = told.rows()
    sound, rest = found[: len(work)], iter(found[len(work) :])
    chosen: list[Chosen] = []
    for item, good in zip(work, sound, strict=True):
        state, token, _ = (next(rest), next(rest), next(rest)) if item.choices else (0, 0, 0)
        usable = bool(good) and state >= 0
        chosen.append(Chosen(ids=[token] if usable and item.choices else [], usable=usable))
    return chosen
