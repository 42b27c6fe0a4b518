"""The whole rollout as one cooperative launch, with W2's 6-bit copy held in shared memory.

Base logits and W1's hidden part in, ids out (cuda/rollout.cu). It runs mode 0 and certified in the
same arithmetic, so that their ids are equal; next: rollout.DominoRollout, which makes its inputs.
"""

import ctypes
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from .cuda.program import CudaKernel, Definitions, available, shared_limit
from .rollout_bounds import bound_rows
from .rollout_device import processors
from .rollout_peers import EMPTY, PeerKeys
from .rollout_weights import DominoWeights

TILE, WARPS, BLOCK = 8, 16, 128
SIX_BIT_WEIGHT = 33.0  # D_WEIGHT of rollout.cu
# Requests up to which one launch was measured faster than several (benchmarks/
# rollout_h200_2026-11-30c.md).
LARGEST_BATCH = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What runs the kernel: CTAs that run at once, shared bytes of each, and a launch."""

    ctas: int
    shared_bytes: int
    launch: Callable[[Definitions, int, ctypes.Structure], None]


def fits(weights: DominoWeights, tokens: int, ctas: int) -> str | None:
    """Why the kernel cannot run this head, or None; tokens: this rank's."""
    gru, bottleneck = weights.gru_dim, weights.bottleneck_dim
    if weights.w2.element_size() != 2:
        return f"weights are {weights.w2.dtype}, it reads bfloat16 and float16"
    if gru % 32 or gru > 8 * ctas:
        return f"the GRU has {gru} units, it takes multiples of 32 up to {8 * ctas}"
    if bottleneck % 32 or bottleneck > min(256, 8 * ctas):
        return f"the bottleneck is {bottleneck}, it takes multiples of 32 up to 256"
    return None if tokens >= ctas else f"{tokens} tokens are fewer than {ctas} processors"


class ResidentRollout:
    """Steps of one head on one GPU; buffers for `max_batch` requests of `proposals` tokens each.

    Runs of one object must follow each other: they share its slots, and a run that empties those of
    another leaves it waiting for ever.
    """

    def __init__(
        self, weights: DominoWeights, table: Tensor, stacked: Tensor, machine: Machine,
        *, full: bool, proposals: int, max_batch: int, first: int = 0,
        peers: PeerKeys | None = None,
    ) -> None:  # fmt: skip
        """table [tokens, 3G] float32, stacked [E + 3G, G] as GruSteps has them. full: score every
        token exactly (mode 0). first: the token of row 0 of W2. peers: where keys of other ranks
        come, `key_slots` of them a half."""
        self._weights, self._table, self._stacked = weights, table, stacked
        self._machine, self._full, self._first, self._peers = machine, full, first, peers
        self._ranks = len(peers.pointers) if peers else 1
        self._width = -(-weights.bottleneck_dim // BLOCK) * BLOCK
        self._records = _records(weights.w2, self._width)
        tiles, record = self._records.shape
        self._tiles, self._each, self._record = tiles, -(-tiles // machine.ctas), record
        device = weights.w2.device
        words = sum(self._sizes(max_batch, proposals))
        self._slots = torch.full((words,), EMPTY, dtype=torch.int64, device=device)
        self._turn = peers.turn if peers else torch.zeros(1, dtype=torch.int32, device=device)

    @property
    def copy(self) -> Tensor:
        """W2's bits [tiles, ..]."""
        return self._records[:, : TILE * self._width * 6 // 8]

    def reset(self, batch: int, n: int) -> None:
        """Empties the slots of a run of so many requests and tokens; must end before `run`."""
        self._slots[: sum(self._sizes(batch, n))].fill_(EMPTY)
        if self._peers:
            self._peers.advance()

    def run(self, base: Tensor, from_hidden: Tensor, start: Tensor, ids: Tensor) -> None:
        """base [n, B, V], from_hidden [n, B, E] float32, start [>= B] keys of the current tokens
        -> ids [B, n] int64."""
        n, batch, vocab = base.shape
        octets: int = triton.next_power_of_2(-(-batch // 8))
        resident = 0 if self._full else self._near(octets, self._each)
        sizes = self._sizes(batch, n)
        h, s, lower, keys = (
            part.data_ptr() for part in torch.split(self._slots[: sum(sizes)], sizes)
        )
        peers = self._peers
        params = _params(self._ranks)(
            base=base.data_ptr(), from_hidden=from_hidden.data_ptr(), table=self._table.data_ptr(),
            w=self._stacked.data_ptr(), w2=self._weights.w2.data_ptr(),
            copy=self._records.data_ptr(), start=start.data_ptr(), ids=ids.data_ptr(),
            h=h, s=s, lower=lower, keys=peers.pointers if peers else (keys,),
            turn=self._turn.data_ptr(), turn_stride=peers.own.shape[1] if peers else 0,
            batch=batch, n=n, base_width=base.stride(1), ids_width=ids.stride(0), vocab=vocab,
            first=self._first, rank=peers.rank if peers else 0, tiles=self._tiles,
            resident=resident,
        )  # fmt: skip
        used = self._fixed_bytes(octets, self._each) + resident * self._record
        self._machine.launch(self._definitions(octets), used, params)

    def _definitions(self, octets: int) -> Definitions:
        weights = self._weights
        found = {"WARPS": WARPS, "CTAS": self._machine.ctas, "RANKS": self._ranks}
        found |= {"OCTETS": octets, "E": weights.bottleneck_dim, "EP": self._width}
        half = {"HALF_IS_FP16": 1} if weights.w2.dtype == torch.float16 else {}
        return found | {"G": weights.gru_dim, "FULL": int(self._full)} | half

    def _sizes(self, batch: int, n: int) -> list[int]:
        """Slots of states, bottlenecks, lower bounds and keys, in words of eight bytes."""
        runs, ctas, weights = batch * n, self._machine.ctas, self._weights
        bytes_each = 2 * weights.gru_dim, 2 * weights.bottleneck_dim, 4 * ctas, 8 * ctas
        return [-(-each * runs // 128) * 16 for each in bytes_each]  # each begins a line

    def _near(self, octets: int, tiles: int) -> int:
        """How many of a CTA's tiles there is shared memory for."""
        room = self._machine.shared_bytes - self._fixed_bytes(octets, tiles)
        return max(0, min(tiles, room // self._record))

    def _fixed_bytes(self, octets: int, tiles: int) -> int:
        """Shared memory beside the copy of a CTA's tiles, as rollout.cu lays it out."""
        bottlenecks = 8 * octets * (self._width + 64 + 2 * self._weights.bottleneck_dim + 64)
        sums = min(octets, 2) * WARPS * 8 * 40 * 4
        each_request = 4 * 24 + 4 * 8 + 4 * tiles + 6 * 4 + 8 * WARPS
        return max(bottlenecks, sums) + 8 * octets * each_request + 4 * tiles + 1024


def key_slots(ranks: int, ctas: int, proposals: int, max_batch: int) -> int:
    """Slots of a run's keys."""
    return ranks * ctas * proposals * max_batch


def _records(w2: Tensor, width: int) -> Tensor:
    """W2's 6-bit copy by tiles of eight tokens [tiles, bytes]: of all values the high four bits, in
    the order in which the lanes of a warp multiply them, then the low two, then each token's scale
    (a quarter: the lanes make four times the values of the bits) and slack."""
    rows = bound_rows(w2, tile=TILE, width=width, levels=31, error_weight=SIX_BIT_WEIGHT)
    tiles = len(rows.scale) // TILE
    lanes = rows.q.view(tiles, TILE, width // BLOCK, 2, 4, 4, 4)  # token, block, half, lane, word
    words = lanes.permute(0, 2, 1, 4, 3, 5, 6).reshape(tiles, -1, 8, 4)  # of a block and lane
    high, low = words >> 2 & 15, words & 3
    high = (high[:, :, 0::2] << 4) + high[:, :, 1::2]
    low = (low[:, :, 0::4] << 6) + (low[:, :, 1::4] << 4) + (low[:, :, 2::4] << 2) + low[:, :, 3::4]
    about = torch.stack([rows.scale / 4, rows.slack], -1).view(tiles, 2 * TILE)
    parts = high.reshape(tiles, -1), low.reshape(tiles, -1), about.view(torch.int8)
    return torch.cat(parts, 1).contiguous()


@functools.cache
def _params(ranks: int) -> type[ctypes.Structure]:
    """The kernel's struct."""
    pointers = (
        "base",
        "from_hidden",
        "table",
        "w",
        "w2",
        "copy",
        "start",
        "ids",
        "h",
        "s",
        "lower",
    )
    numbers = (
        "batch",
        "n",
        "base_width",
        "ids_width",
        "vocab",
        "first",
        "rank",
        "tiles",
        "resident",
    )
    fields: list[tuple[str, Any]] = [(name, ctypes.c_void_p) for name in pointers]
    fields += [("keys", ctypes.c_void_p * ranks), ("turn", ctypes.c_void_p)]
    fields += [("turn_stride", ctypes.c_longlong), *((name, ctypes.c_int) for name in numbers)]
    return type("Params", (ctypes.Structure,), {"_fields_": fields})


def machine_of(device: torch.device) -> Machine | None:
    """The GPU itself; None where the kernel cannot be compiled or launched."""
    if device.type != "cuda" or not available() or torch.cuda.get_device_capability(device)[0] < 9:
        return None
    kernels: dict[tuple[tuple[str, int], ...], CudaKernel] = {}
    ctas = processors(torch.empty(0, device=device))

    def launch(definitions: Definitions, shared_bytes: int, params: ctypes.Structure) -> None:
        key = tuple(sorted(definitions.items()))
        if key not in kernels:
            kernels[key] = CudaKernel("rollout", definitions, shared_bytes)
        kernels[key].launch(ctas, WARPS * 32, params)

    return Machine(ctas=ctas, shared_bytes=shared_limit(device), launch=launch)
