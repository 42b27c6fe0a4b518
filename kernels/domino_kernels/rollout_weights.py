"""The Domino head's tensors, checked; next is the rollout that runs them."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class DominoWeights:
    """One checkpoint's Domino head, all of one dtype, PyTorch's GRU gate order (r, z, n).

    w_ih [3G, H] prefix_gru.weight_ih_l0, w_hh [3G, G] prefix_gru.weight_hh_l0,
    w1 [E, H + G] embed_proj.0.weight, w2 [V, E] embed_proj.2.weight.
    """

    w_ih: Tensor
    w_hh: Tensor
    w1: Tensor
    w2: Tensor

    @property
    def gru_dim(self) -> int:
        """G."""
        return self.w_hh.shape[1]

    @property
    def bottleneck_dim(self) -> int:
        """E."""
        return self.w2.shape[1]

    def check(self, lm_head: Tensor, embedding: Tensor) -> None:
        """Raises ValueError naming the tensor that does not fit lm_head [V, H], embedding [>=V, H].

        Also refuses what the kernels do not read: mixed dtypes and quantised tensors.
        """
        (vocab, hidden), gru, bottleneck = lm_head.shape, self.gru_dim, self.bottleneck_dim
        wanted = {
            "w_ih": (3 * gru, hidden),
            "w_hh": (3 * gru, gru),
            "w1": (bottleneck, hidden + gru),
            "w2": (vocab, bottleneck),
        }
        for name, shape in wanted.items():
            found: Tensor = getattr(self, name)
            if tuple(found.shape) != shape:
                raise ValueError(f"{name} is {tuple(found.shape)}, needs {shape} for this target")
            if found.dtype != lm_head.dtype:
                raise ValueError(f"{name} is {found.dtype}, lm_head {lm_head.dtype}: use one dtype")
        if embedding.shape[0] < vocab or embedding.shape[1] != hidden:
            raise ValueError(
                f"embedding is {tuple(embedding.shape)}, needs [>= {vocab}, {hidden}] as lm_head"
            )
        if embedding.dtype != lm_head.dtype or not lm_head.is_floating_point():
            raise ValueError(
                f"embedding {embedding.dtype}, lm_head {lm_head.dtype}: need one float dtype"
            )
