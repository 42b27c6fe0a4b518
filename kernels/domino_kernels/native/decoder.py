"""A stack of decoder layers run by one call: rows in, rows and taps out, keys and values stored."""

import ctypes
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from domino_kernels.attention import Batch, Visibility
from domino_kernels.decoder import DecoderLayer
from domino_kernels.native.library import library
from domino_kernels.native.linear import LinearStruct, pointer
from domino_kernels.native.pool import num_threads, pool
from domino_kernels.paged_kv import PagedKV
from domino_kernels.rope import RotaryTable

MOST_HEAD_DIM = 256
FEW_ROWS = 16  # of decoder.c
QUERIES, BEHIND = 32, 32  # of attention.h: at a time, scores written behind a query's last
SIZES = ("layers", "hidden", "intermediate", "heads", "kv_heads", "head_dim", "taps")


class LayerStruct(ctypes.Structure):
    """`layer` of decoder.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("norm1", "norm2", "q_norm", "k_norm")),
        *((name, LinearStruct) for name in ("qkv", "o", "gate_up", "down", "context")),
        ("rule", ctypes.c_int),
        ("tap", ctypes.c_int),
    )


class DecoderStruct(ctypes.Structure):
    """`decoder` of decoder.c."""

    _fields_ = (
        *((name, ctypes.c_int) for name in SIZES),
        ("eps", ctypes.c_float),
        *((name, ctypes.c_void_p) for name in ("cos", "sin", "layer")),
    )


class KVStruct(ctypes.Structure):
    """`paged_kv` of decoder.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("k", "v")),
        *((name, ctypes.c_int) for name in ("pages", "page_size")),
    )


class BatchStruct(ctypes.Structure):
    """`batch` of decoder.c, its `row_batch` written out."""

    _fields_ = (
        ("rows", ctypes.c_int),
        *((name, ctypes.c_void_p) for name in ("position", "table", "pages", "first", "last")),
        ("most_keys", ctypes.c_int),
    )


class NativeDecoder:
    """Layers of one shape whose linear layers are all native."""

    def __init__(
        self,
        layers: Sequence[DecoderLayer],
        rules: Sequence[Visibility],
        rotary: RotaryTable,
        taps: Sequence[int],
    ) -> None:
        """`rules`: what each layer's queries see. `taps`: layers whose outputs are returned."""
        self._kept = layers, rotary  # the pointers below point into them
        self._shape = s = layers[0].shape
        self._rules = sorted(set(rules), key=rules.index)
        self._taps = len(taps)
        structs = [
            _layer(layer, self._rules.index(rule), taps.index(i) if i in taps else -1)
            for i, (layer, rule) in enumerate(zip(layers, rules, strict=True))
        ]
        self._layers = (LayerStruct * len(structs))(*structs)
        self._struct = DecoderStruct(
            *(len(layers), s.hidden, s.intermediate, s.heads, s.kv_heads, s.head_dim, len(taps)),
            *(s.eps, rotary.cos.data_ptr(), rotary.sin.data_ptr(), ctypes.addressof(self._layers)),
        )
        self._scratch = torch.empty(0)
        loaded = library()
        assert loaded is not None, "made only where the library is"
        self._forward, self._append = loaded.domino_forward, loaded.domino_append

    def forward(self, x: Tensor, batch: Batch, kv: PagedKV) -> tuple[Tensor, Tensor]:
        """x [n, hidden] -> [n, hidden] and the taps [n, taps, hidden]; stores the rows' KV."""
        s = self._shape
        x = x.clone(memory_format=torch.contiguous_format)
        taps = x.new_empty(len(x), self._taps, s.hidden)
        rows = _Rows(batch, self._rules)
        widths = s.hidden + (2 * s.heads + 2 * s.kv_heads) * s.head_dim + 3 * s.intermediate
        own = QUERIES * rows.struct.most_keys + FEW_ROWS * s.hidden
        scratch = self._at_least(len(x) * widths + num_threads() * own)
        pointers = pointer(x), pointer(taps), pointer(scratch)
        self._run(self._forward, kv, rows, *pointers)
        return x, taps

    def append(self, x: Tensor, batch: Batch, kv: PagedKV) -> None:
        """Projected rows [n, hidden] -> context KV at the batch's positions."""
        x, s = x.contiguous(), self._shape
        scratch = self._at_least(len(x) * 2 * s.kv_heads * s.head_dim)
        self._run(self._append, kv, _Rows(batch, ()), pointer(x), pointer(scratch))

    def _run(
        self, call: Callable[..., object], kv: PagedKV, rows: "_Rows", *areas: ctypes.c_void_p
    ) -> None:
        cache = KVStruct(kv.k.data_ptr(), kv.v.data_ptr(), kv.k.shape[1], kv.page_size)
        own, cache_, rows_ = (ctypes.byref(s) for s in (self._struct, cache, rows.struct))
        call(pool(), own, cache_, rows_, *areas)

    def _at_least(self, size: int) -> Tensor:
        if self._scratch.numel() < size:
            self._scratch = torch.empty(size)
        return self._scratch


class _Rows:
    """Positions, page tables and visible keys of a batch's rows, and the struct that names them."""

    def __init__(self, batch: Batch, rules: Sequence[Visibility]) -> None:
        pages: list[int] = []
        table: list[int] = []
        for span in batch.spans:
            table += [len(pages)] * span.count
            pages += span.pages
        keys = [[rule.keys(span) for span in batch.spans] for rule in rules]
        first = [first for rule in keys for span in rule for first in span[0]]
        last = [last for rule in keys for span in rule for last in span[1]]
        positions = [p for span in batch.spans for p in range(span.start, span.end)]
        self._kept = [_ints(values) for values in (positions, table, pages, first, last)]
        most = (
            max((end - begin for begin, end in zip(first, last, strict=True)), default=0) + BEHIND
        )
        self.struct = BatchStruct(len(positions), *map(ctypes.addressof, self._kept), most)


def _ints(values: Sequence[int]) -> "ctypes.Array[ctypes.c_int]":
    return (ctypes.c_int * max(len(values), 1))(*values)


def _layer(layer: DecoderLayer, rule: int, tap: int) -> LayerStruct:
    none = LinearStruct()
    norms = layer.norm1, layer.norm2, layer.q_norm, layer.k_norm
    linears = layer.qkv, layer.o, layer.gate_up, layer.down, layer.context_kv
    return LayerStruct(
        *(None if norm is None else norm.data_ptr() for norm in norms),
        *(none if one is None or one.native is None else one.native.struct for one in linears),
        *(rule, tap),
    )
