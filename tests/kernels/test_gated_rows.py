"""The gate and up product of up to 256 rows by CUDA C: on a real GPU, and what a CPU can tell."""

import re
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

from domino_kernels.cuda.program import HERE
from domino_kernels.gpu import gated_rows as own
from domino_kernels.gpu.linear import linear_reference
from domino_kernels.gpu.silu import silu_mul_reference


def test_sizes_are_the_kernels() -> None:
    """A tile copied in another size than the kernel waits for: it would wait for ever."""
    text = Path(HERE / "gated_rows.cu").read_text()
    found = {name: int(value) for name, value in re.findall(r"\b([A-Z]+) = (\d+)[,;]", text)}
    assert {name: found[name] for name in ("DEPTH", "ROWS", "COLUMNS")} == {
        "DEPTH": own.DEPTH,
        "ROWS": own.ROWS,
        "COLUMNS": own.COLUMNS,
    }
    stage = (own.ROWS + 2 * own.COLUMNS) * own.DEPTH * 2
    assert found["STAGES"] * (stage + 16) + 1023 <= own.SHARED_BYTES
    assert int(re.findall(r"LIMITS\((\d+)\)", text)[0]) == own.THREADS
    assert not own.fits(torch.zeros(192, 64, dtype=torch.bfloat16)), "a CPU's weight"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(
    ("rows", "half", "width"), [(256, 12288, 4096), (129, 960, 128), (1, 98, 64)]
)
def test_products_equal_float64(rows: int, half: int, width: int) -> None:
    """A row, column or input column of another tile; columns and rows that fill no tile."""
    rng = torch.Generator("cuda").manual_seed(rows)
    weight = torch.randn(2 * half, width, generator=rng, device="cuda").bfloat16() * width**-0.5
    x = torch.randn(rows, width, generator=rng, device="cuda").bfloat16()
    if not own.fits(weight):
        pytest.skip("needs compute capability 9.0 and cuda-bindings")
    wanted = silu_mul_reference(linear_reference(x, weight)[None])
    found = own.gated_rows(x, weight).double()
    assert float((found - wanted).norm() / wanted.norm()) < 4e-3
    torch.testing.assert_close(found, wanted.double(), atol=2e-2, rtol=2e-2)
