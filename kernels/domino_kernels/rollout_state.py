# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
# @triton.jit functions take values of the kernel language, which has no types for mypy
"""The GRU and bottleneck of a rollout step: the last token's key in, next state and silu out.

One matrix [W1's state columns; W_hh] serves both the bottleneck of this step and the gates of the
next, so a step is one small product. `state` [B, E + 3G] is that product's result: the bottleneck
(silu applied, rounded to the weights' dtype), then the GRU gates from the state.
"""

import functools
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .rollout_device import (
    after_previous,
    chosen_token,
    launch_options,
    matmul_f32,
    padded_batch,
)
from .rollout_weights import DominoWeights

ROWS = 32


@triton.jit
def _sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def _next_state(from_token, gates, state, unit, G: tl.constexpr, FIRST: tl.constexpr):
    """One GRU cell for the units `unit`; the pointers start at one request's row."""
    live = unit < G
    r = tl.load(from_token + unit, live, 0.0)
    z = tl.load(from_token + G + unit, live, 0.0)
    n = tl.load(from_token + 2 * G + unit, live, 0.0)
    if FIRST:
        update = _sigmoid(z)
        kept = update * 0.0
        hidden_n = kept
    else:
        r += tl.load(gates + unit, live, 0.0)
        update = _sigmoid(z + tl.load(gates + G + unit, live, 0.0))
        kept = update * tl.load(state + unit, live, 0.0)
        hidden_n = tl.load(gates + 2 * G + unit, live, 0.0)
    new = 2.0 * _sigmoid(2.0 * (n + _sigmoid(r) * hidden_n)) - 1.0
    return (1.0 - update) * new + kept


@triton.jit
def _gru_kernel(keys, table, state_in, h_in, h_out, ids, x_out, row_width, batch, parts, ids_width,
                G: tl.constexpr, E: tl.constexpr, BLOCK: tl.constexpr, FIRST: tl.constexpr,
                TABLE: tl.constexpr, PARTS: tl.constexpr, PDL: tl.constexpr):  # fmt: skip
    after_previous(PDL)
    request = tl.program_id(0)
    unit = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    token = chosen_token(keys, request, batch, parts, PARTS)
    if not FIRST:
        tl.store(ids + request * ids_width, token.to(tl.int64))
    from_token = table + (token.to(tl.int64) if TABLE else request) * (3 * G)
    gates = state_in + request * row_width + E
    h = _next_state(from_token, gates, h_in + request * G, unit, G, FIRST)
    tl.store(h_out + request * G + unit, h, unit < G)
    tl.store(x_out + request * G + unit, h.to(x_out.dtype.element_ty), unit < G)


@triton.jit
def _state_kernel(x, w, from_hidden, out, batch, E: tl.constexpr, G: tl.constexpr,
                  N: tl.constexpr, ROWS: tl.constexpr, K: tl.constexpr, KP: tl.constexpr,
                  PDL: tl.constexpr):  # fmt: skip
    WIDTH: tl.constexpr = E + 3 * G
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    request, k = tl.program_id(1) * N + tl.arange(0, N), tl.arange(0, K)
    tile_at = w + row[None, :] * G + k[:, None]
    tile = tl.load(tile_at, (row < WIDTH)[None, :] & (k < G)[:, None], 0.0)
    after_previous(PDL)
    live = (request < batch)[:, None]
    x_at = x + request[:, None] * G + k[None, :]
    operand = tl.load(x_at, live & (k < G)[None, :], 0.0)
    acc = tl.dot(operand, tile, input_precision="ieee")
    for start in tl.range(K, KP, K):
        inside = k + start < G
        tile = tl.load(tile_at + start, (row < WIDTH)[None, :] & inside[:, None], 0.0)
        operand = tl.load(x_at + start, live & inside[None, :], 0.0)
        acc = tl.dot(operand, tile, acc, input_precision="ieee")
    bottleneck = live & (row < E)[None, :]
    acc += tl.load(from_hidden + request[:, None] * E + row[None, :], bottleneck, 0.0)
    rounded = (acc * _sigmoid(acc)).to(w.dtype.element_ty).to(tl.float32)
    acc = tl.where(bottleneck, rounded, acc)
    tl.store(out + request[:, None] * WIDTH + row[None, :], acc, live & (row < WIDTH)[None, :])


@triton.jit
def _single_kernel(keys, table, state_in, h_in, h_out, ids, w, from_hidden, out, parts,
                   E: tl.constexpr, G: tl.constexpr, ROWS: tl.constexpr, KP: tl.constexpr,
                   FIRST: tl.constexpr, TABLE: tl.constexpr, PARTS: tl.constexpr,
                   PDL: tl.constexpr):  # fmt: skip
    """`_gru_kernel` and `_state_kernel` in one for one request: every program runs the GRU."""
    WIDTH: tl.constexpr = E + 3 * G
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    k = tl.arange(0, KP)
    tile = tl.load(
        w + row[None, :] * G + k[:, None], (row < WIDTH)[None, :] & (k < G)[:, None], 0.0
    )
    after_previous(PDL)
    token = chosen_token(keys, 0, 1, parts, PARTS).to(tl.int64)
    if not FIRST:
        tl.store(ids, token, tl.program_id(0) == 0)
    from_token = table + token * (3 * G if TABLE else 0)
    h = _next_state(from_token, state_in + E, h_in, k, G, FIRST)
    h = tl.where(k < G, h, 0.0)
    tl.store(h_out + k, h, (k < G) & (tl.program_id(0) == 0))
    rounded_h = h.to(w.dtype.element_ty).to(tl.float32)
    acc = tl.sum(tile.to(tl.float32) * rounded_h[:, None], axis=0)
    bottleneck = row < E
    acc += tl.load(from_hidden + row, bottleneck, 0.0)
    rounded = (acc * _sigmoid(acc)).to(w.dtype.element_ty).to(tl.float32)
    tl.store(out + row, tl.where(bottleneck, rounded, acc), row < WIDTH)


@triton.jit
def _token_kernel(keys, token, batch, parts, PARTS: tl.constexpr, PDL: tl.constexpr):
    after_previous(PDL)
    request = tl.program_id(0)
    tl.store(token + request, chosen_token(keys, request, batch, parts, PARTS))


@triton.jit
def _input_kernel(token, embedding, w_ih, out, batch, H: tl.constexpr, G: tl.constexpr,
                  N: tl.constexpr, ROWS: tl.constexpr, K: tl.constexpr,
                  PDL: tl.constexpr):  # fmt: skip
    after_previous(PDL)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    request = tl.program_id(1) * N + tl.arange(0, N)
    live = request < batch
    row_of = tl.load(token + request, live, 0).to(tl.int64)
    acc = tl.zeros((N, ROWS), tl.float32)
    for start in tl.range(0, H, K):
        k = start + tl.arange(0, K)
        x = tl.load(
            embedding + row_of[:, None] * H + k[None, :], live[:, None] & (k < H)[None, :], 0.0
        )
        w = tl.load(
            w_ih + row[None, :] * H + k[:, None], (row < 3 * G)[None, :] & (k < H)[:, None], 0.0
        )
        acc = tl.dot(x, w, acc, input_precision="ieee")
    tl.store(
        out + request[:, None] * (3 * G) + row[None, :], acc, live[:, None] & (row < 3 * G)[None, :]
    )


class GruSteps:
    """Runs the recurrent part; all buffers are made once, for `max_batch` requests.

    With `table` the products embedding @ W_ih^T of the whole vocabulary are kept (float32,
    V x 3G x 4 bytes) and a step reads one row a request; without, a step reads W_ih.
    """

    def __init__(
        self, weights: DominoWeights, embedding: Tensor, max_batch: int, *, table: bool, vocab: int
    ) -> None:
        """vocab: tokens that may come, at most the rows of the embedding."""
        gru, bottleneck = weights.gru_dim, weights.bottleneck_dim
        self.stacked = torch.cat([weights.w1[:, -gru:], weights.w_hh]).contiguous()
        self._weights, self._embedding = weights, embedding
        self._gru, self._bottleneck = gru, bottleneck
        self.table = input_table(embedding[:vocab], weights.w_ih) if table else None
        new = functools.partial(torch.zeros, dtype=torch.float32, device=embedding.device)
        self._inputs = new(max_batch, 3 * gru)
        self._hidden = [new(max_batch, gru), new(max_batch, gru)]
        self._state = [new(max_batch, bottleneck + 3 * gru) for _ in range(2)]
        self._token = torch.zeros(max_batch, dtype=torch.int32, device=embedding.device)
        self._x = torch.zeros(max_batch, gru, dtype=embedding.dtype, device=embedding.device)

    def run(
        self, step: int, keys: Tensor, parts: int, from_hidden: Tensor, ids: Tensor,
        *, early: bool = True,
    ) -> Tensor:  # fmt: skip
        """keys [>= parts, B] of the last token, from_hidden [B, E] -> state [B, E + 3G] float32.

        The last token is also written to ids [B, n] at step - 1. Step 0 starts from the zero state
        and waits for every stream joined before it; so does a step that is not `early`. The result
        is valid for the next step only.
        """
        batch, gru, first = len(ids), self._gru, step == 0
        if self.table is None:
            self._project_tokens(keys, parts, batch, early and not first)
        inputs = self._inputs if self.table is None else self.table
        before, after = self._state[(step + 1) % 2], self._state[step % 2]
        buffers = inputs, before, self._hidden[(step + 1) % 2], self._hidden[step % 2]
        column = ids[:, max(step - 1, 0)]
        padded = max(16, triton.next_power_of_2(gru))
        early = (early and not first) or self.table is None
        sizes: dict[str, Any] = {"E": self._bottleneck, "G": gru, "KP": padded, "ROWS": ROWS}
        which = {"FIRST": first, "TABLE": self.table is not None}
        which["PARTS"] = triton.next_power_of_2(parts)
        rows: int = triton.cdiv(self._bottleneck + 3 * gru, ROWS)
        if batch == 1:
            _single_kernel[(rows,)](
                keys, *buffers, column, self.stacked, from_hidden, after, parts, **sizes, **which,
                **launch_options(self.stacked, warps=8, early=early),
            )  # fmt: skip
            return after[:1]
        block = min(256, padded)
        _gru_kernel[batch, triton.cdiv(gru, block)](
            keys, *buffers, column, self._x, after.shape[1], batch, parts, ids.stride(0), G=gru,
            E=self._bottleneck, BLOCK=block, **which,
            **launch_options(self.stacked, warps=2, early=early),
        )  # fmt: skip
        # more float32 rows than 16 would not fit in shared memory
        requests = min(padded_batch(batch), 64 if self._x.element_size() == 2 else 16)
        _state_kernel[rows, triton.cdiv(batch, requests)](
            self._x, self.stacked, from_hidden, after, batch, N=requests,
            K=padded if requests <= 16 else min(256, padded), **sizes,
            **launch_options(self.stacked, warps=4 if requests > 32 else 8),
        )  # fmt: skip
        return after[:batch]

    def _project_tokens(self, keys: Tensor, parts: int, batch: int, early: bool) -> None:
        hidden = self._embedding.shape[1]
        _token_kernel[(batch,)](
            keys, self._token, batch, parts, PARTS=triton.next_power_of_2(parts),
            **launch_options(self.stacked, early=early),
        )  # fmt: skip
        requests = min(padded_batch(batch), 64)
        _input_kernel[triton.cdiv(3 * self._gru, ROWS), triton.cdiv(batch, requests)](
            self._token, self._embedding, self._weights.w_ih, self._inputs, batch, H=hidden,
            G=self._gru, N=requests, ROWS=ROWS,
            K=min(256, max(16, triton.next_power_of_2(hidden))), **launch_options(self.stacked),
        )  # fmt: skip


def input_table(embedding: Tensor, w_ih: Tensor) -> Tensor:
    """embedding [V, H] @ w_ih [3G, H]^T in float32 [V, 3G]."""
    table = torch.empty(len(embedding), len(w_ih), dtype=torch.float32, device=embedding.device)
    for rows, out in zip(embedding.split(16384), table.split(16384), strict=True):
        matmul_f32(rows, w_ih, out)
    return table
