"""Where rows are sent from and to."""

from collections.abc import Iterator

import pytest
import torch

from tests.transport import fake_nccl
from tests.transport.sent import CPU, GPUS, Devices


@pytest.fixture(params=["tcp", "like nccl", GPUS])
def devices(request: pytest.FixtureRequest) -> Iterator[Devices]:
    """Between CPUs by TCP, between CPUs by NCCL's calls, between GPUs by NCCL."""
    if request.param == "gpus":
        yield torch.device("cuda:0"), torch.device("cuda:1")
    elif request.param == "tcp":
        yield CPU, CPU
    else:
        with fake_nccl.in_place():
            yield CPU, CPU
