"""Prompts in, the target's own answers out: text for a draft is what its target says.

Many rows advance together; on a GPU a step is one CUDA graph for each length of the cache.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from training.target import BatchTarget

BUCKET = 64  # cache slots between two graphs
PROMPT_TOKENS = 65536  # tokens of prompts in one pass
CHECK_EVERY = 16  # steps between two looks at how many rows are still going


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """rows: prompts at a time. prompt, new: tokens at most. straggling: a batch ends once this
    share of its rows or fewer is unfinished; their answers stay as long as they are. temperature:
    0 is greedy."""

    rows: int
    prompt: int
    new: int
    straggling: float = 0.06
    temperature: float = 0.0


class Generator:
    """Continuation with one cache, used batch after batch."""

    def __init__(self, target: BatchTarget, limits: Limits, stop_ids: Sequence[int]) -> None:
        self._target, self._limits = target, limits
        self._slots = -(-(limits.prompt + limits.new) // BUCKET) * BUCKET
        self._cache = target.new_kv(limits.rows, self._slots)
        device = target.device
        self._stops = torch.tensor(list(stop_ids), device=device)
        self._token = torch.zeros(limits.rows, dtype=torch.long, device=device)
        self._position = torch.zeros_like(self._token)
        self._done = torch.zeros_like(self._token, dtype=torch.bool)
        self._answers = torch.zeros(limits.rows, limits.new, dtype=torch.long, device=device)
        self._count = torch.zeros(1, dtype=torch.long, device=device)
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None

    @torch.no_grad()
    def answers(self, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
        """One answer a prompt, the stop id included where it was reached."""
        assert len(prompts) <= self._limits.rows, "more prompts than rows"
        longest = max(map(len, prompts))
        self._start(prompts)
        steps = 1
        while steps < self._limits.new and longest + steps < self._slots:
            if steps % CHECK_EVERY == 0:
                going = len(prompts) - int(self._done[: len(prompts)].sum())
                if going <= self._limits.straggling * len(prompts):
                    break
            self._advance(-(-(longest + steps) // BUCKET) * BUCKET)
            steps += 1
        found = self._answers[: len(prompts), :steps].tolist()
        return [self._until_stop(answer) for answer in found]

    def _until_stop(self, answer: list[int]) -> list[int]:
        stops = set(self._stops.tolist())
        end = next((i for i, token in enumerate(answer) if token in stops), len(answer) - 1)
        return answer[: end + 1]

    def _start(self, prompts: Sequence[Sequence[int]]) -> None:
        device = self._target.device
        self._done.fill_(True)
        self._done[: len(prompts)] = False
        self._position.zero_()
        self._count.zero_()
        rows = max(1, PROMPT_TOKENS // max(map(len, prompts)))
        for first in range(0, len(prompts), rows):
            part = prompts[first : first + rows]
            lengths = torch.tensor([len(p) for p in part], device=device)
            ids = padded(part, device)
            x, _ = self._target.prompt(ids, self._cache, first)
            x = x[torch.arange(len(part), device=device), lengths - 1]
            self._token[first : first + len(part)] = self._choose(self._target.logits(x))
            self._position[first : first + len(part)] = lengths
        self._keep(self._token)

    def _advance(self, length: int) -> None:
        if self._target.device.type != "cuda":
            return self._step(length)
        if length not in self._graphs:
            self._graphs[length] = captured(lambda: self._step(length), self._state(), self._pool)
        self._graphs[length].replay()

    def _step(self, length: int) -> None:
        x, _ = self._target.extend(
            self._token[:, None], self._position[:, None], self._cache, length
        )
        self._position += 1
        self._keep(self._choose(self._target.logits(x[:, 0])))

    def _choose(self, logits: Tensor) -> Tensor:
        if self._limits.temperature > 0:
            shares = (logits.float() / self._limits.temperature).softmax(-1)
            logits = shares / torch.empty_like(shares).exponential_()
        return logits.argmax(-1)

    def _keep(self, tokens: Tensor) -> None:
        tokens = torch.where(self._done, self._stops[0], tokens)
        self._token.copy_(tokens)
        self._done |= torch.isin(tokens, self._stops)
        self._answers.index_copy_(1, self._count, tokens[:, None])
        self._count += 1

    def _state(self) -> list[Tensor]:
        return [self._token, self._position, self._done, self._answers, self._count]


def padded(sequences: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """Ids [n, longest], zeros behind each sequence."""
    rows = [torch.tensor(s) for s in sequences]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).to(device)


def captured(
    step: Callable[[], None], state: Sequence[Tensor], pool: Any = None
) -> torch.cuda.CUDAGraph:
    """A graph of `step`, run once before the capture with `state` put back behind it."""
    saved = [tensor.clone() for tensor in state]
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    with torch.no_grad():
        for tensor, value in zip(state, saved, strict=True):
            tensor.copy_(value)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
        step()
    return graph
