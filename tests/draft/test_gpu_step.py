"""The draft's GPU executor under Triton's interpreter against the CPU's: the same proposals."""

import pytest

from tests.kernels.interpreted import run_interpreted

pytest.importorskip("triton")

CONTEXT = """
from domino_kernels.gpu.context_store import ContextHeads, context_reference, context_store

rng = torch.Generator().manual_seed(2)
for layers, kv, dim, norm, bias in ((3, 2, 16, True, False), (1, 1, 12, False, True)):
    width = layers * 2 * kv * dim
    heads = ContextHeads(
        eps=1e-6,
        bias=torch.randn(width, generator=rng) if bias else None,
        k_norm=torch.randn(layers, dim, generator=rng) if norm else None,
    )
    parts = torch.randn(2, 5, width, generator=rng)
    angles = torch.randn(50, dim // 2, generator=rng), torch.randn(50, dim // 2, generator=rng)
    positions = torch.tensor([30, 31, 7, 0, 49], dtype=torch.int32)
    slots = torch.tensor([14, 15, -1, 0, 9], dtype=torch.int32)
    k, v = (torch.full((layers, 4, kv, 4, dim), torch.nan) for _ in range(2))
    context_store(parts, heads, angles, positions, slots, (k, v))
    wanted = context_reference(parts, heads, angles, positions, (layers, kv, dim))
    for pages, rows in zip((k, v), wanted):
        for row, slot in enumerate(slots.tolist()):
            if slot >= 0:
                found = pages[:, slot // 4, :, slot % 4]
                torch.testing.assert_close(found, rows[:, row], atol=1e-5, rtol=1e-5)
        written = (~pages.isnan()).all(4).all(2).sum()
        assert int(written) == layers * 4, "only the given slots are written"
"""

EXECUTORS = """
from tests.draft.executors import check_passes

check_passes({folder!r}, {candidates!r}, torch.device("cpu"), sessions=3, passes=2, window={window})
"""


def test_context_goes_to_every_layer() -> None:
    """A row stored in another layer, head or slot only lowers acceptance."""
    run_interpreted(CONTEXT)


@pytest.mark.parametrize(
    ("folder", "candidates", "window"),
    [("DOMINO_SHIFT", 0, 0), ("DOMINO_NOSHIFT", "certified", 6)],
)
def test_executors_agree(folder: str, candidates: int | str, window: int) -> None:
    """Rows, slots, buckets, masks or tokens taken wrongly on a GPU only lower acceptance."""
    run_interpreted(EXECUTORS.format(folder=folder, candidates=candidates, window=window))
