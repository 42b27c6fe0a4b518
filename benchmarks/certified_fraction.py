"""How much of W2 the certified rollout reads on real text: its bounds evaluated on a CPU.

The embedded pair answers the first prompts of GSM8K by Domino; every corrected step of every block
is looked at as an H200 runs it (kernels/domino_kernels/cuda/rollout.cu). Bytes of a rollout: the
6-bit copy with scale and slack, once where it stays in shared memory and at each step where not,
and the rows of tiles of 8 tokens that a CTA's own bounds leave to be evaluated exactly, which is
the most there can be (bounds of other CTAs, if they come in time, leave fewer); over those of all
rows at each step, which mode 0 reads.
"""

import argparse
import datetime
import json
import statistics
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import draft_service.load
import verify_service.load
from benchmarks.packages import read
from benchmarks.provenance import tree, versions
from benchmarks.workloads import WORKLOADS
from domino_cli.in_process import InProcess, collect
from domino_cli.models import DEFAULT_DRAFT, DEFAULT_TARGET, resolve_model
from domino_kernels.rollout_bounds import BoundedRows, bound_rows
from domino_serve.v1 import speculation_pb2 as spec
from draft_service.config import DraftServiceConfig
from draft_service.executor import Executor
from draft_service.rollout import DominoSampler
from router.tokenizer import Tokenizer
from serving.checkpoint import Checkpoint
from serving.draft_config import DraftConfig
from serving.draft_tensors import DOMINO
from verify_service.config import VerifyConfig

TILE, LEVELS, S_STEPS, ERROR_WEIGHT = 8, 31, 127.0, 33.0  # as rollout.cu has them
BLOCK, BITS, GOAL = 128, 6, 0.30
CTAS, SHARED_BYTES, FIXED_BYTES = 132, 232448, 40000  # an H200's; beside the copy, at most


class Recorder:
    """A Domino sampler's stand-in that counts, for each corrected step, the tiles evaluated."""

    def __init__(self, sampler: DominoSampler, config: DraftConfig, checkpoint: Checkpoint) -> None:
        head = config.domino
        assert head is not None, "only Domino drafts are corrected"
        w1_shape = head.emb_dim, config.hidden_size + head.gru_hidden_dim
        self._sampler, self._hidden = sampler, config.hidden_size
        self._w1 = checkpoint.tensor(DOMINO[2], w1_shape, torch.float32)
        self.w2 = checkpoint.tensor(DOMINO[3], (config.vocab_size, head.emb_dim), torch.float32)
        width = -(-head.emb_dim // BLOCK) * BLOCK
        self.rows = bound_rows(
            self.w2, tile=TILE, width=width, levels=LEVELS, error_weight=ERROR_WEIGHT
        )
        self.tiles: list[int] = []
        self.steps: list[int] = []

    def propose(self, hidden: Tensor, current: Tensor) -> Tensor:
        """As the sampler's."""
        steps: list[tuple[Tensor, Tensor]] = []
        ids = self._sampler.propose(
            hidden, current, lambda scores, state: steps.append((scores.clone(), state.clone()))
        )
        self.steps.append(len(steps))
        for j, (scores, state) in enumerate(steps, start=1):
            pre = torch.cat([hidden[:, j], state], -1) @ self._w1.T
            bottleneck = torch.nn.functional.silu(pre).bfloat16().float()
            for s, row in zip(bottleneck, scores, strict=True):
                self.tiles.append(tiles_left(self.rows, s, row - self.w2 @ s))
        return ids

    def fraction(self, *, resident: bool) -> float:
        """Bytes read over mode 0's, in bfloat16; resident: what fits stays in shared memory."""
        vocab, width = self.w2.shape
        record = TILE * (self.rows.q.shape[1] * BITS // 8 + 8)
        tiles = len(self.rows.scale) // TILE
        near = min(tiles, CTAS * ((SHARED_BYTES - FIXED_BYTES) // record)) if resident else 0
        steps = sum(self.steps)
        copy = record * (near * len(self.steps) + (tiles - near) * steps)
        return (copy + sum(self.tiles) * TILE * width * 2) / (steps * vocab * width * 2)


def tiles_left(rows: BoundedRows, s: Tensor, base: Tensor) -> int:
    """s [E], base [V] -> tiles whose upper bound reaches the highest lower one of their CTA."""
    step = float(s.abs().max()) / S_STEPS or 1.0
    rounded = (s / step + 0.5).floor() * step
    reach = s.norm() + ERROR_WEIGHT * (s - rounded).norm()
    each = -(-len(rows.scale) // (TILE * CTAS)) * TILE

    def by_cta(values: Tensor, fill: float) -> Tensor:
        padded = torch.nn.functional.pad(values, (0, CTAS * each - len(values)), value=fill)
        return padded.view(CTAS, each)

    middle = by_cta(base, -torch.inf) + by_cta(
        (rows.q[:, : len(s)].float() @ rounded) * rows.scale, 0
    )
    radius = by_cta(rows.slack * reach, 0)
    upper = (middle + radius).view(CTAS, -1, TILE).amax(2)
    left = (upper >= (middle - radius).amax(1, keepdim=True)) & (upper > -torch.inf)
    return int(left.sum())


def record(prompts: int, tokens: int) -> Recorder:
    """Answers so many prompts of so many tokens."""
    target, draft = resolve_model(DEFAULT_TARGET), resolve_model(DEFAULT_DRAFT)
    drafter = draft_service.load.load(DraftServiceConfig(target=target, draft=draft))
    executor = drafter.engine._executor
    assert isinstance(executor, Executor)
    sampler = executor._samplers[spec.MODE_DOMINO]
    assert isinstance(sampler, DominoSampler)
    recorder = Recorder(sampler, drafter.weights.draft, drafter.weights.checkpoint)
    executor._samplers[spec.MODE_DOMINO] = recorder  # type: ignore[assignment]
    verify = verify_service.load.load(
        VerifyConfig(target=target, draft=draft, width_policy="fixed")
    )
    tokenizer, workload = Tokenizer.load(target), WORKLOADS["gsm8k"]
    with InProcess(verify, drafter) as both:
        for text in workload.prompts(read(workload.file))[:prompts]:
            ids = tokenizer.encode_chat([{"role": "user", "content": text}])
            width = drafter.weights.draft.block_size
            collect(both.submit(ids, tokens, mode=spec.MODE_DOMINO, draft_tokens=width - 1))
    return recorder


def main() -> None:
    """Answers, counts, writes the JSON and prints the figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--prompts", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=160)
    options = parser.parse_args()
    recorder = record(options.prompts, options.tokens)
    fraction, tiles = recorder.fraction(resident=True), recorder.tiles
    figure: dict[str, Any] = {
        "id": "rollout_certified_fraction",
        "value": round(fraction, 4),
        "unit": "bytes of W2 over mode 0's",
        "goal": GOAL,
        "met": fraction <= GOAL,
        "lower_is_better": True,
        "hardware": "counted on a CPU, for an H200's shared memory",
        "versions": versions(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": "python -m benchmarks.certified_fraction --json FILE",
    }
    counts = {"steps": len(tiles), "tiles_mean": statistics.fmean(tiles), "most": max(tiles)}
    counts["fraction_not_resident"] = round(recorder.fraction(resident=False), 4)
    shape = {"vocab": len(recorder.w2), "bottleneck": recorder.w2.shape[1]}
    result = {"figures": [figure], "tree": tree(), "counts": counts, "head": shape}
    options.json.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(counts | shape))
    print(figure["id"], figure["value"], "goal", GOAL, "met" if figure["met"] else "NOT met")


if __name__ == "__main__":
    main()
