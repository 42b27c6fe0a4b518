"""Optimizer steps: rows in, trained weights and the figures of a step out.

Everything a step needs is a function of the number of completed steps: order, anchors, learning
rate, curriculum. On a GPU a micro-batch and an update are one CUDA graph each.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from training import checkpoint
from training.checkpoint import State
from training.config import TrainConfig
from training.curriculum import base_share
from training.features import Features
from training.generate import captured
from training.holding import Holding, Replicated
from training.objective import Objective
from training.optimizer import learning_rate, make_optimizers
from training.ranks import ONE_RANK, Ranks
from training.rows import Anchors, candidates, choose_anchors
from training.sharded import Sharded

# What a resumed run may change without becoming another run.
FREE = (
    "output",
    "init",
    "start",
    "log_interval",
    "save_interval",
    "max_checkpoints",
    "save_optimizer",
    *("format", "held_out", "eval_interval", "eval_tokens", "tensorboard"),
)
# Paths, and where and how things are computed.
FREE_TOO = ("data", "target", "device", "features", "chunk", "attention", "parallel")


class Trainer:
    """masters: float32 weights by name; they are moved to the features' device."""

    def __init__(
        self,
        config: TrainConfig,
        objective: Objective,
        features: Features,
        masters: Mapping[str, Tensor],
        dtype: torch.dtype,
        ranks: Ranks = ONE_RANK,
    ) -> None:
        self.ranks = ranks
        self.config, self.objective, self.features = config, objective, features
        self.dtype, self.step = dtype, 0
        device = objective.head.lm_head.device
        hold = Sharded if config.parallel == "fsdp" and ranks.count > 1 else Replicated
        self._holding: Holding = hold(masters, device, dtype, ranks)
        self.masters = self._holding.masters
        # Every gradient and the sums (the loss's denominator, both branches' losses) in one memory,
        # which is what ranks add up.
        sizes = [w.numel() for w in self.masters.values()]
        self._shared = torch.zeros(sum(sizes) + 3, device=device)
        *parts, self._sums = torch.split(self._shared, [*sizes, 3])
        self._gradients = [
            part.view_as(w) for part, w in zip(parts, self.masters.values(), strict=True)
        ]
        for weight, gradient in zip(self.masters.values(), self._gradients, strict=True):
            weight.grad = gradient
        self._optimizers = make_optimizers(
            config.optimizer,
            self.masters,
            betas=(0.9, config.beta2),
            weight_decay=config.weight_decay,
        )
        self._batch = features.empty(config.rows)
        self._uniform = torch.zeros(config.rows, config.row_length - 1, device=device)
        self._share, self._norm = torch.zeros((), device=device), torch.zeros((), device=device)
        self._graphs: dict[Callable[[], None], torch.cuda.CUDAGraph] = {}
        captures = device.type == "cuda" and self._holding.captures
        self._graph_pool = torch.cuda.graph_pool_handle() if captures else None

    @property
    def weights(self) -> dict[str, Tensor]:
        """Copies in the dtype of the products; all ranks ask for them."""
        return {name: w.detach().to(self.dtype) for name, w in self.whole_masters().items()}

    def whole_masters(self) -> dict[str, Tensor]:
        """float32 weights by name; all ranks ask for them."""
        return self._holding.whole(self.masters)

    @property
    def is_finite(self) -> bool:
        """Whether the last step's gradients were numbers; the weights are none else."""
        return bool(torch.isfinite(self._norm))

    def train_step(self) -> None:
        """One optimizer step."""
        config = self.config
        rate = learning_rate(
            self.step,
            config.steps,
            peak=config.lr,
            warmup=config.warmup,
            schedule=config.schedule,
            floor=config.floor,
        )
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"].fill_(rate)
        self._share.fill_(self._base_share())
        self._sums.zero_()
        for micro in range(config.accumulation):
            number = self.step * config.accumulation + micro
            self._load(self.ranks.turn(number))
            self._do(self._micro)
        self._holding.add_up(self._shared, self._sums)
        self._do(self._update)
        self.step += 1

    def metrics(self) -> dict[str, float]:
        """Of the last step, the figures of accuracy being of its last micro-batch."""
        weight, base, final = self._sums.tolist()
        share = self._base_share(self.step - 1)
        losses = {"base_loss": base / weight, "final_loss": final / weight} if weight else {}
        loss = share * base + (1 - share) * final if self._has_head else base
        counts = self.objective.measure(self.weights, self._batch, self.anchors())
        return {
            "step": self.step,
            "loss": loss / weight if weight else 0.0,
            **losses,
            **counts.figures(),
            "lambda": share,
            "lr": float(self._optimizers[0].param_groups[0]["lr"]),
            "grad_norm": float(self._norm),
            "blocks": float(counts.blocks) * self.config.accumulation * self.ranks.count,
        }

    def state(self) -> State:
        """All that a resumed run needs; all ranks ask for it."""
        config = {
            name: str(value) if name == "init" else value
            for name, value in dataclasses.asdict(self.config).items()
            if name not in FREE + FREE_TOO
        }
        saved = checkpoint.flatten(self._optimizers) if self.config.save_optimizer else {}
        meta: dict[str, Any] = {"step": self.step, "config": config}
        return State(masters=self.whole_masters(), optimizer=self._joined(saved), meta=meta)

    def _joined(self, saved: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Moments as whole as the weights that they belong to; counters as they are."""
        names = list(self.masters)
        return {
            key: self._holding.whole({names[int(key.split(".")[1])]: moment}).popitem()[1]
            if moment.dim()
            else moment
            for key, moment in saved.items()
        }

    def resume(self, state: State) -> None:
        """Raises TrainingError naming a setting that differs."""
        checkpoint.refuse_other_run(state.meta["config"], self.state().meta["config"])
        with torch.no_grad():
            for name, weight in self.masters.items():
                weight.copy_(self._holding.part(state.masters[name]))
        moments = {k: self._holding.part(m) if m.dim() else m for k, m in state.optimizer.items()}
        checkpoint.restore(self._optimizers, moments)
        self.step = int(state.meta["step"])

    @property
    def _has_head(self) -> bool:
        return self.config.head != "dflash"

    def _base_share(self, step: int | None = None) -> float:
        config = self.config
        if config.head == "dspark":  # its loss has no base branch
            return 0.0
        return base_share(
            self.step if step is None else step,
            config.steps,
            start=config.base_start,
            ratio=config.base_ratio,
            steps=config.base_steps,
        )

    def _load(self, number: int) -> None:
        """Rows and random numbers of the run's micro-batch `number`."""
        total, rows = self.features.size.rows, self.config.rows
        places = torch.arange(number * rows, (number + 1) * rows)
        index = torch.stack([self._order(int(p) // total)[int(p) % total] for p in places])
        self.features.fill(self._batch, index)
        generator = torch.Generator(self._uniform.device)
        generator.manual_seed(self.config.seed * 1_000_003 + number)
        self._uniform.uniform_(generator=generator)

    def _order(self, epoch: int) -> Tensor:
        if getattr(self, "_epoch", None) != epoch:
            generator = torch.Generator().manual_seed(self.config.seed * 7919 + epoch)
            total = self.features.size.rows
            self._epoch, self._permutation = epoch, torch.randperm(total, generator=generator)
        return self._permutation

    def anchors(self) -> Anchors:
        """Where the blocks of the batch in memory begin."""
        eligible = candidates(self._batch.supervised, self._batch.starts)
        return choose_anchors(self._uniform, eligible, self.config.anchors)

    def _micro(self) -> None:
        """Adds one micro-batch's gradients, not divided yet."""
        slopes, sums = self._holding.micro(self.objective, self._batch, self.anchors(), self._share)
        for gradient, slope in zip(self._gradients, slopes, strict=True):
            gradient += slope  # bfloat16 ones are widened on the way
        self._sums += torch.stack([sums.weight, sums.base, sums.final])

    def _update(self) -> None:
        """Divides by the whole step's weight, clips, steps, clears."""
        gradients = self._gradients
        torch._foreach_mul_(gradients, 1 / (self._sums[0] + 1e-6))
        self._norm.copy_(self._holding.norm(gradients))
        torch._foreach_mul_(gradients, (self.config.clip / (self._norm + 1e-6)).clamp(max=1.0))
        for optimizer in self._optimizers:
            optimizer.step()
        torch._foreach_zero_(gradients)

    def _do(self, part: Callable[[], None]) -> None:
        """Runs a part of a step, as a CUDA graph where there is one."""
        if self._graph_pool is None:
            return part()
        if part not in self._graphs:
            if self.step == 0:  # the first step makes the optimizers' state and all workspaces
                return part()
            self._graphs[part] = captured(part, self._changing(), self._graph_pool)
        self._graphs[part].replay()

    def _changing(self) -> list[Tensor]:
        """What a warm-up run before a capture must put back."""
        moments = checkpoint.live_tensors(self._optimizers)
        weights = self.masters.values()
        return [*weights, *self._gradients, *moments, self._sums, self._norm]
