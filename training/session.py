"""One training run: trains, tells, evaluates, saves, exports. Before: training.opening."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from training import checkpoint
from training.best import best_so_far, keep_best
from training.config import TrainConfig
from training.errors import TrainingError
from training.evaluate import MACRO, HeldOut, evaluate
from training.export import export, export_speculators, parse_draft
from training.start import first_weights
from training.target import BatchTarget
from training.trainer import Trainer
from training.watch import Speed, Watch, gpu_figures, progress, shown

EXPORT, EVALUATED = "export", "evaluated"
STOP_AFTER = 3  # log lines in a row without a finite loss
Report = Callable[[str], None]
Tick = Callable[[int, float], None]  # completed steps, seconds left


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """draft_json: config.json of the draft in the making. held_out: prompts to evaluate on."""

    config: TrainConfig
    target: BatchTarget
    trainer: Trainer
    draft_json: dict[str, Any]
    held_out: Sequence[HeldOut] = ()

    def again(self, config: TrainConfig) -> "Session":
        """The same run from its first step, with another number of steps, features kept."""
        trainer = self.trainer
        draft = parse_draft(config.output, self.draft_json, self.target.config)
        start = first_weights(config, draft, self.target)
        fresh = Trainer(
            config, trainer.objective, trainer.features, start, trainer.dtype, trainer.ranks
        )
        return dataclasses.replace(self, config=config, trainer=fresh)

    def run(
        self, report: Report, until: int | None = None, tick: Tick = lambda step, eta_s: None
    ) -> Path:
        """Trains to the end (or `until`), saving on the way; returns the export's folder.

        Of several ranks the first one writes and reports.
        """
        config, trainer = self.config, self.trainer
        first, bad, speed = trainer.step + 1, 0, Speed(trainer.step, config.steps)
        end = config.steps if until is None else until
        with Watch(config.output if self._leads else None, tensorboard=config.tensorboard) as watch:
            while trainer.step < end:
                trainer.train_step()
                tick(trainer.step, speed.eta_s(trainer.step))
                if trainer.step == first:
                    self._tell(report, f"step {first} is done in {speed.first_s:.1f} s")
                if self._is_due(config.log_interval, end):
                    line = self._line(speed)
                    watch.add(line)
                    self._tell(report, progress(line, config.steps))
                    bad = 0 if math.isfinite(line["loss"]) else bad + 1
                    if bad >= STOP_AFTER:
                        raise self._diverged()
                if self._is_due(config.eval_interval, end) and self.held_out:
                    self._evaluate(watch, report)
                if self._is_due(config.save_interval, end):
                    if trainer.is_finite:
                        self.save()
                    elif trainer.step == end:
                        raise self._diverged()
        return self.export_last()

    @property
    def _leads(self) -> bool:
        return self.trainer.ranks.rank == 0

    def _tell(self, report: Report, text: str) -> None:
        if self._leads:
            report(text)

    def _line(self, speed: Speed) -> dict[str, float]:
        """The metrics of now, with the speed of this process and the time left in seconds."""
        config, step = self.config, self.trainer.step
        line, steps_per_s = self.trainer.metrics(), speed.steps_per_s(step)
        tokens = config.rows * config.row_length * config.accumulation * self.trainer.ranks.count
        line |= {"tokens": step * tokens, "tokens_per_s": steps_per_s * tokens}
        line |= {"steps_per_s": steps_per_s, "eta_s": speed.eta_s(step)}
        return line | gpu_figures(self.target.device)

    def _is_due(self, interval: int, end: int) -> bool:
        return self.trainer.step % interval == 0 or self.trainer.step == end

    def _diverged(self) -> TrainingError:
        """The step is kept for a look at it; what a resume would load stays as it was."""
        step, place = self.trainer.step, self.config.output / f"diverged_{self.trainer.step:07d}"
        state = self.trainer.state()
        if self._leads:
            checkpoint.write(place, state)
        return TrainingError(f"loss: not finite up to step {step}, kept in {place}; lower lr")

    def _evaluate(self, watch: Watch, report: Report) -> None:
        """What real drafting on the held-out prompts accepts now; the best draft so far is kept."""
        config, step = self.config, self.trainer.step
        draft = self.export(config.output / EVALUATED)
        if not self._leads:
            return
        width, new = config.block_size, config.eval_tokens
        found = evaluate(self.target, draft, self.held_out, width=width, new=new)
        watch.add({"step": step, "evaluation": found})
        best = best_so_far(config.output)
        report(f"step {step}: {shown(found)}")
        if found[MACRO] > best:
            keep_best(config.output, draft, {"step": step, MACRO: found[MACRO]})

    def save(self) -> None:
        """A checkpoint of now."""
        state = self.trainer.state()
        if self._leads:
            checkpoint.save(self.config.output, state, keep=self.config.max_checkpoints)

    def export(self, folder: Path) -> Path:
        """A checkpoint for the draft service, read back as it reads it."""
        masters = self.trainer.whole_masters()
        if self._leads:
            export(folder, self.draft_json, masters, self.target.config)
        return folder

    def export_last(self) -> Path:
        """What the run leaves, in the format that was asked for."""
        folder, config = self.config.output / EXPORT, self.config
        if config.format == "native":
            return self.export(folder)
        masters = self.trainer.whole_masters()
        if self._leads:
            export_speculators(folder, self.draft_json, masters, self.target)
        return folder
