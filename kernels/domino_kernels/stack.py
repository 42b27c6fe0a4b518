"""A model's decoder layers, from first to last: one native call where it can be, else torch's."""

from collections.abc import Callable, Sequence

from torch import Tensor

from domino_kernels.attention import Batch, PagedAttention, Visibility
from domino_kernels.decoder import DecoderLayer, LayerShape, Read, Total, alone
from domino_kernels.native.decoder import MOST_HEAD_DIM, NativeDecoder
from domino_kernels.paged_kv import PagedKV
from domino_kernels.rope import RotaryTable

Attend = Callable[[Visibility], PagedAttention]


class Decoder:
    """Layers of one shape; layer i sees keys by `rules[i]`, and those in `taps` are looked at."""

    def __init__(
        self,
        shape: LayerShape,
        read: Callable[[int], Read],
        rules: Sequence[Visibility],
        rotary: RotaryTable,
        taps: Sequence[int] = (),
        total: Total = alone,
    ) -> None:
        """read(i) reads layer i's tensors; `total` sums what narrows a layer, over processes."""
        self.shape, self._rules, self._rotary, self._taps = shape, tuple(rules), rotary, tuple(taps)
        self.layers = [DecoderLayer(shape, read(i), total) for i in range(len(rules))]
        native = all(layer.qkv.native for layer in self.layers) and shape.head_dim <= MOST_HEAD_DIM
        native = native and total is alone  # one call runs all layers, without a word between
        self._native = NativeDecoder(self.layers, rules, rotary, self._taps) if native else None

    def forward(self, x: Tensor, batch: Batch, kv: PagedKV) -> tuple[Tensor, list[Tensor]]:
        """x [n, hidden] -> the last layer's output and the taps' outputs, each [n, hidden].

        Stores the keys and values of all n positions.
        """
        if self._native:
            x, taps = self._native.forward(x, batch, kv)
            return x, list(taps.unbind(1))
        attentions = {rule: self.attention(batch, rule, x) for rule in set(self._rules)}
        return self.layer_by_layer(x, batch, kv, attentions.__getitem__)

    def layer_by_layer(
        self,
        x: Tensor,
        batch: Batch,
        kv: PagedKV,
        attention: Attend,
    ) -> tuple[Tensor, list[Tensor]]:
        """What `forward` does, by torch, with the attention of each rule as given."""
        angles = self._rotary.at(batch.positions)
        outputs: dict[int, Tensor] = {}
        for i, (layer, rule) in enumerate(zip(self.layers, self._rules, strict=True)):
            x = layer.forward(x, batch, angles, kv, i, attention(rule))
            if i in self._taps:
                outputs[i] = x
        return x, [outputs[i] for i in self._taps]

    def append(self, rows: Tensor, batch: Batch, kv: PagedKV) -> None:
        """Projected rows [n, hidden] -> context KV of every layer at the batch's positions."""
        if self._native:
            self._native.append(rows, batch, kv)
        else:
            self.append_layer_by_layer(rows, batch, kv)

    def append_layer_by_layer(self, rows: Tensor, batch: Batch, kv: PagedKV) -> None:
        """What `append` does, by torch."""
        angles = self._rotary.at(batch.positions)
        for i, layer in enumerate(self.layers):
            layer.store_context(rows, batch, angles, kv, i)

    def attention(self, batch: Batch, rule: Visibility, x: Tensor) -> PagedAttention:
        """Torch's attention of a batch under a rule, in x's dtype."""
        s = self.shape
        sizes = {"heads": s.heads, "kv_heads": s.kv_heads, "head_dim": s.head_dim}
        return PagedAttention(batch, rule, **sizes, dtype=x.dtype)
