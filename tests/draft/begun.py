"""Steps that begin behind a verify step against the same steps asked for by the host."""

import torch

from domino_kernels.gpu.hand_over import Verified
from domino_serve.v1 import draft_pb2
from domino_serve.v1 import speculation_pb2 as spec
from draft_service.executor import Part
from tests.draft.executors import PAGE, executors

WIDTH, SESSIONS = 4, 3


def check_begun(name: str, device: torch.device, *, passes: int, window: int = 0) -> None:
    """Raises AssertionError where a proposal differs, on drafts that have seen the same rows."""
    on_cpu, on_gpu = executors(name, 0, device, SESSIONS, window)
    config, rng = on_cpu.config, torch.Generator().manual_seed(3)
    pages, kept = [list(range(4 * s, 4 * s + 4)) for s in range(SESSIONS)], [9, 1, 16]
    table = torch.randn(200, config.hidden_size, generator=rng)
    first = [slice(sum(kept[:s]), sum(kept[: s + 1])) for s in range(SESSIONS)]
    parts = [part(0, p, rows, None, 0) for p, rows in zip(pages, first, strict=True)]
    for executor in (on_cpu, on_gpu):
        executor.run(parts, table[: sum(kept)], draft_pb2.DraftTimings())
    for number in range(passes):
        accepted = [int(torch.randint(WIDTH, (), generator=rng)) for _ in range(SESSIONS)]
        current = [int(torch.randint(config.vocab_size, (), generator=rng)) for _ in pages]
        slots = torch.randperm(200, generator=rng)[: SESSIONS * WIDTH]
        out = torch.zeros(SESSIONS, WIDTH + 2, dtype=torch.int32)
        out[:, 0], out[:, 1] = torch.tensor(accepted), torch.tensor(current)
        verified = Verified(
            out=out.to(device),
            positions=(torch.tensor(kept)[:, None] + torch.arange(WIDTH))
            .flatten()
            .int()
            .to(device),
            slots=slots.int().to(device),
            rows=table.to(device),
        )
        count = (3, config.max_draft_tokens)[number % 2]
        waiting = [
            Part.waiting(spec.MODE_DOMINO, p, start, count)
            for p, start in zip(pages, kept, strict=True)
        ]
        begun = on_gpu.begin(waiting, verified, count)
        assert begun is not None
        rows, asked = [], []
        for s in range(SESSIONS):
            rows += slots[s * WIDTH : s * WIDTH + accepted[s] + 1].tolist()
            taken = slice(len(rows) - accepted[s] - 1, len(rows))
            asked.append(part(kept[s], pages[s], taken, current[s], count))
            kept[s] += accepted[s] + 1
        wanted = on_cpu.run(asked, table[rows], draft_pb2.DraftTimings())
        assert begun.taken == [(a + 1, c) for a, c in zip(accepted, current, strict=True)]
        assert [ids[:count] for ids in begun.proposals] == wanted
        assert begun.ids.tolist() == begun.proposals
    assert max(kept) + config.block_size < 4 * PAGE


def part(start: int, pages: list[int], rows: slice, current: int | None, count: int) -> Part:
    return Part(
        mode=spec.MODE_DOMINO,
        pages=pages,
        start=start,
        rows=rows,
        current=current,
        draft_tokens=count,
    )
