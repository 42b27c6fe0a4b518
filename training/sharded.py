"""Weights, gradients and moments in equal parts over the ranks, by PyTorch's FSDP2.

A draft is small beside its target: it is one unit, gathered for a micro-batch in the dtype of the
products and let go behind its backward pass, which sums and splits the gradients in float32.
"""

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard

from training.objective import Objective, Sums
from training.ranks import Ranks
from training.rows import Anchors, Rows

Scalars = tuple[Tensor, Tensor, Tensor, Tensor]


class _Draft(torch.nn.Module):
    """The draft as a module whose call is one micro-batch's loss."""

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        self._names = list(weights)
        for name, weight in weights.items():
            self.register_parameter(name.replace(".", "/"), torch.nn.Parameter(weight))

    def forward(self, objective: Objective, rows: Rows, anchors: Anchors, share: Tensor) -> Scalars:
        weights = dict(zip(self._names, self.parameters(), strict=True))
        sums = objective.sums(weights, rows, anchors, share)
        return sums.loss, sums.weight, sums.base, sums.final


class Sharded:
    """Parts along the first dimension, as FSDP2 cuts them; see training.holding.Holding."""

    captures = False

    def __init__(
        self, weights: Mapping[str, Tensor], device: torch.device, dtype: torch.dtype, ranks: Ranks
    ) -> None:
        self._ranks = ranks
        self._mesh = init_device_mesh(device.type, (ranks.count,))
        self._draft = _Draft({n: w.to(device) for n, w in weights.items()})
        policy = MixedPrecisionPolicy(
            param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False
        )
        unit = fully_shard(self._draft, mesh=self._mesh, mp_policy=policy)
        # Sums, not means: the denominator is the whole step's.
        unit.set_force_sum_reduction_for_comms(True)
        unit.set_gradient_divide_factor(1.0)
        self._shapes = {n: w.shape for n, w in weights.items()}
        self.masters = {
            name: self._local(weight.detach())
            for name, weight in zip(weights, self._draft.parameters(), strict=True)
        }

    def micro(
        self, objective: Objective, rows: Rows, anchors: Anchors, share: Tensor
    ) -> tuple[list[Tensor], Sums]:
        loss, weight, base, final = self._draft(objective, rows, anchors, share)
        loss.backward()
        slopes = []
        for parameter in self._draft.parameters():
            assert parameter.grad is not None
            slopes.append(self._local(parameter.grad))
            parameter.grad = None
        return slopes, Sums(loss=loss.detach(), weight=weight, base=base, final=final)

    def add_up(self, shared: Tensor, sums: Tensor) -> None:
        self._ranks.add_up(sums)

    def norm(self, gradients: list[Tensor]) -> Tensor:
        square = torch.stack([g.square().sum() for g in gradients]).sum()
        self._ranks.add_up(square)
        return square.sqrt()

    def whole(self, parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
        found = {}
        for name, part in parts.items():
            shape = self._shapes[name]
            stride = torch.empty(shape, device="meta").stride()
            split = DTensor.from_local(
                part, self._mesh, [Shard(0)], run_check=False, shape=shape, stride=stride
            )
            found[name] = split.full_tensor()
        return found

    def part(self, whole: Tensor) -> Tensor:
        parts = whole.chunk(self._ranks.count)
        rank = dist.get_rank()
        return parts[rank] if rank < len(parts) else whole[:0]

    def _local(self, tensor: Tensor) -> Tensor:
        assert isinstance(tensor, DTensor)
        return tensor.to_local()
