"""How much of W2 the certified rollout reads on real text: its bounds evaluated on a CPU.

The embedded pair answers the first prompts of GSM8K by Domino; every corrected step of every block
is looked at. Bytes: the 8-bit copy with scale and slack, and the rows of the groups of 32 tokens
whose bounds leave them to be evaluated exactly; over those of all rows, which mode 0 reads.
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
from benchmarks.provenance import tree
from benchmarks.workloads import WORKLOADS
from domino_cli.in_process import InProcess, collect
from domino_cli.models import DEFAULT_DRAFT, DEFAULT_TARGET, resolve_model
from domino_kernels.rollout_bounds import ERROR_WEIGHT, BoundedRows, bound_rows
from domino_serve.v1 import speculation_pb2 as spec
from draft_service.config import DraftServiceConfig
from draft_service.executor import Executor
from draft_service.rollout import DominoSampler
from router.tokenizer import Tokenizer
from serving.checkpoint import Checkpoint
from serving.draft_config import DraftConfig
from serving.draft_tensors import DOMINO
from verify_service.config import VerifyConfig

GROUP, TILE, S_STEPS, GOAL = 32, 128, 16192.0, 0.30  # as rollout_certified has them


class Recorder:
    """A Domino sampler's stand-in that counts, for each corrected step, the groups left."""

    def __init__(self, sampler: DominoSampler, config: DraftConfig, checkpoint: Checkpoint) -> None:
        head = config.domino
        assert head is not None, "only Domino drafts are corrected"
        w1_shape = head.emb_dim, config.hidden_size + head.gru_hidden_dim
        self._sampler, self._hidden = sampler, config.hidden_size
        self._w1 = checkpoint.tensor(DOMINO[2], w1_shape, torch.float32)
        self.w2 = checkpoint.tensor(DOMINO[3], (config.vocab_size, head.emb_dim), torch.float32)
        self.rows = bound_rows(self.w2, tile=TILE, width=max(32, head.emb_dim))
        self.groups: list[int] = []

    def propose(self, hidden: Tensor, current: Tensor) -> Tensor:
        """As the sampler's."""
        steps: list[tuple[Tensor, Tensor]] = []
        ids = self._sampler.propose(
            hidden, current, lambda scores, state: steps.append((scores.clone(), state.clone()))
        )
        for j, (scores, state) in enumerate(steps, start=1):
            pre = torch.cat([hidden[:, j], state], -1) @ self._w1.T
            bottleneck = torch.nn.functional.silu(pre).bfloat16().float()
            for s, row in zip(bottleneck, scores, strict=True):
                self.groups.append(groups_left(self.rows, s, row - self.w2 @ s))
        return ids

    def fraction(self) -> float:
        """Bytes read over those of W2, in bfloat16, on average."""
        vocab, width = self.w2.shape
        copy = self.rows.q.numel() + 4 * (len(self.rows.scale) + len(self.rows.slack))
        rows = statistics.fmean(self.groups) * GROUP * width * 2
        return (copy + rows) / (vocab * width * 2)


def groups_left(rows: BoundedRows, s: Tensor, base: Tensor) -> int:
    """s [E], base [V] -> groups whose upper bound reaches the highest lower bound."""
    step = float(s.abs().max()) / S_STEPS or 1.0
    rounded = (s / step + 0.5).floor() * step
    reach = s.norm() + ERROR_WEIGHT * (s - rounded).norm()
    padding = len(rows.scale) - len(base)
    base = torch.nn.functional.pad(base, (0, padding), value=-torch.inf)
    middle = base + (rows.q[:, : len(s)].float() @ rounded) * rows.scale
    radius = rows.slack * reach
    upper = (middle + radius).view(-1, GROUP).amax(1)
    return int((upper >= (middle - radius).max()).sum())


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
    fraction, groups = recorder.fraction(), recorder.groups
    figure: dict[str, Any] = {
        "id": "rollout_certified_fraction",
        "value": round(fraction, 4),
        "unit": "bytes of W2 over mode 0's",
        "goal": GOAL,
        "met": fraction <= GOAL,
        "lower_is_better": True,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": "python -m benchmarks.certified_fraction --json FILE",
    }
    counts = {"steps": len(groups), "groups_mean": statistics.fmean(groups), "most": max(groups)}
    shape = {"vocab": len(recorder.w2), "bottleneck": recorder.w2.shape[1]}
    result = {"figures": [figure], "tree": tree(), "counts": counts, "head": shape}
    options.json.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(counts | shape))
    print(figure["id"], figure["value"], "goal", GOAL, "met" if figure["met"] else "NOT met")


if __name__ == "__main__":
    main()
