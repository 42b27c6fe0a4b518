"""Two processes that hold one target together on a CPU against one that holds all of it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from domino_cli.in_process import InProcess, collect
from domino_serve.v1 import speculation_pb2 as spec
from serving.unused_port import unused_port
from tests.engines import engines
from tests.tiny_models import VOCAB, write_draft, write_target
from verify_service.sampling import SamplingParams

ROOT = Path(__file__).parents[2]
PROMPTS = [[3, 9, 4, 100, 12], list(range(20, 60)), [7]]
COUNT = 40

LEAD = """
import json, sys
from pathlib import Path
from domino_cli.in_process import InProcess
from tests.verify.test_tp import load_and_answer
print(json.dumps(load_and_answer(Path(sys.argv[1]), Path(sys.argv[2]))))
"""


def load_and_answer(target: Path, draft: Path) -> dict[str, Any]:
    """What an engine says, plain, drafted, sampled, masked; run by the first rank."""
    with engines(target, draft) as engine:
        return {"answers": answers(engine), "executed": engine.engine.executed()}


def answers(engine: InProcess) -> dict[str, Any]:
    """Answers to PROMPTS, all at once, in several ways."""

    def ask(**options: Any) -> list[list[int]]:
        events = [engine.submit(prompt, COUNT, **options) for prompt in PROMPTS]
        return [collect(event)[0] for event in events]

    sampling = SamplingParams(temperature=0.9, top_k=30, top_p=0.9, seed=5)
    masked = {"stop_ids": range(0, VOCAB, 2), "min_tokens": 9}
    return {
        "plain": ask(),
        "drafted": ask(mode=spec.MODE_DOMINO, draft_tokens=7),
        "sampled": ask(sampling=sampling),
        "masked": ask(**masked),
    }


def start(rank: int, port: int, arguments: list[str]) -> "subprocess.Popen[str]":
    environment = os.environ | {
        "RANK": str(rank),
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "PYTHONPATH": os.pathsep.join(["kernels", "protos/gen", "."]),
        "OMP_NUM_THREADS": "1",
    }
    return subprocess.Popen(
        [sys.executable, *arguments],
        env=environment,
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def follower(port: int, target: Path, draft: Path) -> "subprocess.Popen[str]":
    options = ["--page-size", "16", "--kv-tokens", "2048", "--threads", "1"]
    models = ["--target", str(target), "--draft", str(draft)]
    return start(1, port, ["-m", "verify_service", *models, *options])


@pytest.fixture(scope="module", params=["qwen3", "llama_bias", "qwen2"])
def models(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    """VOCAB is odd, so that ranks hold different numbers of ids."""
    target, draft = tmp_path_factory.mktemp("target"), tmp_path_factory.mktemp("draft")
    write_target(request.param, target)
    write_draft(target, draft, block_size=8, domino=True, shift=True)
    return target, draft


def test_two_ranks_give_the_ids_of_one(models: tuple[Path, Path]) -> None:
    """A shard cut or summed wrongly, or a rank that runs other work, changes tokens."""
    assert VOCAB % 2 == 1
    with engines(*models) as alone:
        expected = answers(alone)
    port = unused_port()
    other = follower(port, *models)
    lead = start(0, port, ["-c", LEAD, *map(str, models)])
    out, errors = lead.communicate()
    assert lead.returncode == 0, errors[-3000:]
    found = json.loads(out)
    assert found["answers"] == expected
    assert expected["drafted"] == expected["plain"]
    by_graph, eagerly = found["executed"]
    assert by_graph == 0 and eagerly > len(PROMPTS) * COUNT, "told of the first rank's own part"
    _, errors = other.communicate()
    assert other.returncode == 0, errors[-3000:]
