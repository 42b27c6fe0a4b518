"""`python -m benchmarks.draft_arms_steps TARGET DRAFT... --json FILE`: what a step of each draft
and of their target takes, as the services' graphs run it on one GPU.

Drafts are exports of benchmarks.draft_arms, by the name of their folder; the head's rollout is the
service's own for it: kernels for Domino, plain PyTorch in the graph for DSpark. The target has
random weights of the same shapes. Next: benchmarks.draft_arms_report.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.gpu_draft_model import PAGE, drafting, random_rows
from benchmarks.gpu_verify_model import decoding, random_kv, random_target, step_graphs
from benchmarks.gpu_verify_timing import replay_us
from domino_kernels.linear import Linear
from draft_service.config import DraftServiceConfig
from draft_service.gpu_network import read_gpu_network
from draft_service.gpu_step import StepGraphs
from draft_service.tables import Tables
from serving.checkpoint import Checkpoint
from serving.draft_format import open_draft
from serving.target_config import EMBEDDING, TargetConfig, open_target

CONTEXT, PAGES, BATCHES, NEW_ROWS = 640, 64, (1, 8), 5
DTYPE = torch.bfloat16


@torch.inference_mode()
def main(argv: Sequence[str] | None = None) -> int:
    name = "python -m benchmarks.draft_arms_steps"
    parser = argparse.ArgumentParser(prog=name, description=__doc__)
    parser.add_argument("target", type=Path, help="the target's folder")
    parser.add_argument("drafts", type=Path, nargs="+", help="folders of exported drafts")
    parser.add_argument("--json", type=Path, required=True, help="where the times go")
    args = parser.parse_args(argv)
    checkpoint, config = open_target(args.target)
    found = {}
    for folder in args.drafts:
        found[folder.name] = draft_ms(folder, args.target, checkpoint, config)
        print(folder.name, json.dumps(found[folder.name]), flush=True)
    draft = open_draft(args.drafts[0], config)[1]
    taps, width = draft.target_layer_ids, draft.block_size
    verify = {f"verify_c{count}": verify_ms(config, taps, count, width) for count in BATCHES}
    print(json.dumps(verify), flush=True)
    args.json.write_text(json.dumps({name: times | verify for name, times in found.items()}))
    return 0


def draft_ms(
    folder: Path, target: Path, checkpoint: Checkpoint, sizes: TargetConfig
) -> dict[str, float]:
    """Milliseconds: draft_c1, draft_c8: a block and all its proposals in the draft's best mode."""
    draft, config = open_draft(folder, sizes)
    device, table = torch.device("cuda:0"), (sizes.vocab_size, sizes.hidden_size)
    embedding = checkpoint.tensor(EMBEDDING, table, DTYPE).to(device)
    head = checkpoint.tensor(sizes.lm_head_name, table, DTYPE).to(device)
    tables = Tables(embedding=embedding, lm_head=Linear(head))
    options = DraftServiceConfig(target=target, draft=folder, dtype="bfloat16", max_sessions=8)
    network = read_gpu_network(options, config, draft, tables, 4 * PAGE)
    kv = network.new_kv(PAGES, PAGE)
    mode, found = list(network.rollouts)[-1], {}
    for count in BATCHES:
        number = config.block_size - 1
        graphs = StepGraphs(
            network.model, network.rollouts, kv, pages=4, batches=[count], counts=[number]
        )
        step = graphs.step(mode, count, number)
        step.capture(torch.cuda.graph_pool_handle())
        drawn = drafting(count, number, CONTEXT, NEW_ROWS, PAGES)
        parts = [replace(part, mode=mode, current=i) for i, part in enumerate(drawn)]
        step.run(parts, random_rows(parts, config.hidden_size))
        assert step.graph is not None, "was captured"
        found[f"draft_c{count}"] = round(replay_us(step.graph) / 1000, 4)
    return found


def verify_ms(config: TargetConfig, taps: Sequence[int], count: int, width: int) -> float:
    """Milliseconds of a step of `count` sequences, features projected."""
    target = random_target(config, DTYPE, taps)
    kv = random_kv(target, PAGES)
    rows = torch.zeros(PAGES * PAGE, config.hidden_size, dtype=DTYPE, device=target.device)
    step = step_graphs(target, kv, count, width, rows).step(count, width)
    step.bucket.fill(decoding(count, width, CONTEXT, PAGES, config.vocab_size))
    assert step.graph is not None, "was captured"
    return round(replay_us(step.graph) / 1000, 4)


if __name__ == "__main__":
    sys.exit(main())
