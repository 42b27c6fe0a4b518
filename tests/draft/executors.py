"""One draft by both executors, the CPU's and the GPU's, and passes that must give the same ids."""

import random
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from domino_kernels.gpu.attention import pieces
from domino_kernels.linear import Linear
from domino_serve.v1 import draft_pb2
from draft_service import gpu_rows
from draft_service.config import DraftServiceConfig
from draft_service.executor import Executor, Part
from draft_service.gpu_executor import GpuExecutor
from draft_service.gpu_network import read_gpu_network
from draft_service.model import DraftModel
from draft_service.rollout import make_samplers
from draft_service.tables import Tables, read_tables
from draft_service.window import windowed
from serving.draft_format import open_draft
from serving.target_config import open_target
from tests import recorded_models

Candidates = int | Literal["certified"]
PAGES, PAGE = 24, 16
FULL = 2 * PAGE  # rows after which a session begins anew; the most at once is 20


def two_pieces(programs: int, group_rows: int, head_dim: int) -> int:
    """Of a tile's keys, where a GPU takes up to 32: contexts here fill one, and an interpreter
    spends as long on each of the others."""
    return min(2, pieces(programs, group_rows, head_dim))


def executors(
    name: str, candidates: Candidates, device: torch.device, sessions: int, window: int
) -> tuple[Executor, GpuExecutor]:
    """By the draft's name in recorded_models; float32."""
    target, sizes = open_target(recorded_models.TARGET)
    folder = getattr(recorded_models, name)
    draft, config = open_draft(folder, sizes)
    config = windowed(config, window)
    cpu, dtype = torch.device("cpu"), torch.float32
    tables = read_tables(config, draft, sizes, target, dtype=dtype, device=cpu)
    model = DraftModel(config, draft, tables.embedding, max_positions=4 * PAGE, dtype=dtype)
    pool = 0 if candidates == "certified" else candidates
    on_cpu = Executor(model, make_samplers(config, draft, tables, pool), model.new_kv(PAGES, PAGE))
    options = DraftServiceConfig(
        target=recorded_models.TARGET,
        draft=folder,
        domino_candidates=str(candidates),
        max_sessions=sessions,
    )
    head = Linear(torch.empty(0, 0, dtype=torch.float16))
    shape = (sizes.vocab_size, sizes.hidden_size)
    head.weight = target.tensor(sizes.lm_head_name, shape, dtype).to(
        device
    )  # on a CPU it is packed
    there = Tables(
        embedding=tables.embedding.to(device), lm_head=head, target_ids=tables.target_ids
    )
    if device.type == "cpu":
        gpu_rows.pieces = two_pieces  # type: ignore[attr-defined]
    network = read_gpu_network(options, config, draft, there, 4 * PAGE)
    return on_cpu, network.executor(network.new_kv(PAGES, PAGE))


@dataclass
class Traffic:
    """Random sessions in random pages; each pass appends to some and drafts for some.

    whole: asks for whole blocks, because a pool depends on how many rows are asked for.
    """

    executor: Executor
    sessions: int
    whole: bool
    rng: random.Random = field(default_factory=lambda: random.Random(7))

    def __post_init__(self) -> None:
        pages = self.rng.sample(range(PAGES), 4 * self.sessions)
        self._pages = [pages[4 * i : 4 * i + 4] for i in range(self.sessions)]
        self._modes = [self.rng.choice(list(self.executor.modes)) for _ in range(self.sessions)]
        self._kept = [0] * self.sessions

    def next(self) -> tuple[list[Part], Tensor]:
        """Parts and their rows, which lie in the message in this order."""
        config, parts, first = self.executor.config, [], 0
        for i in self.rng.sample(range(self.sessions), self.rng.randrange(1, self.sessions + 1)):
            if self._kept[i] > FULL:
                self._kept[i] = 0
            most = self.rng.choice((1, config.block_size, 20))
            count = self.rng.randrange(most + 1) if self._kept[i] else self.rng.randrange(8, 20)
            part = Part(
                mode=self._modes[i],
                pages=self._pages[i],
                start=self._kept[i],
                rows=slice(first, first + count),
                current=self.rng.randrange(config.vocab_size) if self.rng.random() < 0.8 else None,
                draft_tokens=self.rng.randrange(
                    config.max_draft_tokens if self.whole else 1, config.max_draft_tokens + 1
                ),
            )
            first, self._kept[i] = first + count, part.end
            parts.append(part)
        generator = torch.Generator().manual_seed(self.rng.randrange(1 << 30))
        return parts, torch.randn(first, config.hidden_size, generator=generator)


def check_passes(
    name: str,
    candidates: Candidates,
    device: torch.device,
    *,
    sessions: int,
    passes: int,
    window: int = 0,
) -> GpuExecutor:
    """Raises AssertionError where a proposal differs; window: the draft's, 0 is none."""
    on_cpu, on_gpu = executors(name, candidates, device, sessions, window)
    traffic, drafted = Traffic(on_cpu, sessions, candidates not in (0, "certified")), []
    for number in range(passes):
        parts, rows = traffic.next()
        found, wanted = (e.run(parts, rows, draft_pb2.DraftTimings()) for e in (on_gpu, on_cpu))
        for part, ids, expected in zip(parts, found, wanted, strict=True):
            asked = part.draft_tokens if part.current is not None else 0
            assert ids[:asked] == expected[:asked], (number, part, ids, expected)
            drafted += [tuple(ids[:asked])] if asked else []
    assert len(drafted) >= passes
    assert len({token for ids in drafted for token in ids}) > 1
    assert on_gpu.num_graph + on_gpu.num_eager >= len(drafted)
    return on_gpu
