"""A rank's part of a target: whole kv heads with their query heads, columns of the MLP, ids.

Layers that widen are cut by outputs, those that narrow by inputs; the latter's results are parts
of a sum over ranks.
"""

from dataclasses import replace

import torch
from torch import Tensor

from domino_kernels.decoder import Read
from serving.options import OptionError
from serving.target_config import TargetConfig
from verify_service.ranks import Ranks


class Shard:
    """What `ranks.rank` holds; `config` has its own sizes, `vocab` its rows of the tables."""

    def __init__(self, config: TargetConfig, ranks: Ranks) -> None:
        if ranks.size > config.num_kv_heads:
            raise OptionError(
                "tp", ranks.size, f"exceeds the target's {config.num_kv_heads} KV heads; so many "
                "ranks at most",
            )  # fmt: skip
        self.ranks, self.vocab = ranks, ranks.share(config.vocab_size)
        group = config.num_heads // config.num_kv_heads
        kv, wide = ranks.share(config.num_kv_heads), ranks.share(config.intermediate_size)
        self.config = replace(
            config,
            num_heads=(kv.stop - kv.start) * group,
            num_kv_heads=kv.stop - kv.start,
            intermediate_size=wide.stop - wide.start,
        )
        d = config.head_dim
        keys, queries = _scaled(kv, d), _scaled(kv, group * d)
        heads = config.num_heads * d, config.num_kv_heads * d
        # by name: the dimension that is cut, where, and its whole size
        self._cuts: dict[str, tuple[int, slice, int]] = {
            "self_attn.q_proj": (0, queries, heads[0]),
            "self_attn.k_proj": (0, keys, heads[1]),
            "self_attn.v_proj": (0, keys, heads[1]),
            "self_attn.o_proj": (1, queries, heads[0]),
            "mlp.gate_proj": (0, wide, config.intermediate_size),
            "mlp.up_proj": (0, wide, config.intermediate_size),
            "mlp.down_proj": (1, wide, config.intermediate_size),
        }

    def table(self, whole: Tensor) -> Tensor:
        """This rank's rows of the embedding or the head [vocab, hidden]."""
        return whole if self.ranks.size == 1 else whole[self.vocab].clone()

    def layer(self, read: Read, *, bias_after_sum: bool) -> Read:
        """Reads whole tensors of a layer by `read` and hands out this rank's part.

        bias_after_sum: of a sum over ranks; else the first rank alone adds it to its part.
        """
        if self.ranks.size == 1:
            return read

        def part(name: str, shape: tuple[int, ...]) -> Tensor:
            layer, _, kind = name.rpartition(".")
            if layer not in self._cuts:
                return read(name, shape)
            dim, where, size = self._cuts[layer]
            if kind == "bias":
                if dim == 0:
                    return read(name, (size,))[where].clone()
                bias = read(name, shape)
                return bias if bias_after_sum or not self.ranks.rank else torch.zeros_like(bias)
            whole = read(name, (size, shape[1]) if dim == 0 else (shape[0], size))
            return (whole[where] if dim == 0 else whole[:, where]).clone()

        return part


def _scaled(part: slice, by: int) -> slice:
    return slice(part.start * by, part.stop * by)
