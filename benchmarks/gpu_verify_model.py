"""A target with random weights at a real model's shapes, and steps of it to check and to time."""

import zlib
from collections.abc import Sequence as Seq
from dataclasses import replace

import torch
from torch import Tensor

from domino_kernels.gpu.few_rows import GpuLinear
from domino_kernels.paged_kv import PagedKV
from serving.rope_config import Rope
from serving.target_config import TargetConfig
from verify_service.gpu_step import StepGraphs
from verify_service.gpu_target import GpuTarget, Projection
from verify_service.ranks import ALONE, Ranks
from verify_service.scheduler import Work
from verify_service.sequence import Request, Sequence

PAGE = 256
TAPS = (1, 9, 17, 25, 33)


def qwen3_8b(layers: int = 36, vocab: int = 151936) -> TargetConfig:
    """Qwen3-8B's sizes."""
    return TargetConfig(
        vocab_size=vocab,
        hidden_size=4096,
        intermediate_size=12288,
        num_layers=layers,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        rms_norm_eps=1e-6,
        rope=Rope(kind="default", theta=1e6),
        max_context=40960,
        attention_bias=False,
        output_bias=False,
        mlp_bias=False,
        qk_norm=True,
        model_type="qwen3",
        tied_embeddings=False,
        eos_token_ids=(),
    )


class RandomWeights:
    """Every tensor by name and shape, the same whenever it is asked for; as a Checkpoint reads."""

    def __init__(self, dtype: torch.dtype, device: str = "cuda") -> None:
        self._dtype, self._device = dtype, device

    def tensor(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Norms around 1, everything else so that rows keep their size."""
        rng = torch.Generator(self._device).manual_seed(zlib.crc32(name.encode()))
        drawn = torch.randn(shape, generator=rng, device=self._device, dtype=self._dtype)
        return ((1 + 0.1 * drawn) if len(shape) == 1 else drawn * shape[-1] ** -0.5).to(dtype)

    def read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """A tensor in the weights' own dtype."""
        return self.tensor(name, shape, self._dtype)


def qwen3_32b(layers: int = 64) -> TargetConfig:
    """Qwen3-32B's sizes."""
    return replace(
        qwen3_8b(), num_layers=layers, hidden_size=5120, intermediate_size=25600, num_heads=64
    )


def random_target(
    config: TargetConfig,
    dtype: torch.dtype,
    taps: Seq[int] = (),
    *,
    ranks: Ranks = ALONE,
    deterministic: bool = False,
) -> GpuTarget:
    """With `taps`, a projection of them to one row."""
    weights, hidden = RandomWeights(dtype), config.hidden_size
    projection = None
    if taps:
        fc = GpuLinear(weights.read("fc.weight", (hidden, len(taps) * hidden)))
        projection = Projection(fc, weights.read("hidden_norm.weight", (hidden,)), 1e-6)
    return GpuTarget(
        config,
        weights.read,
        dtype=dtype,
        device=torch.device("cuda", torch.cuda.current_device()),
        taps=taps,
        projection=projection,
        ranks=ranks,
        deterministic=deterministic,
    )


def random_kv(target: GpuTarget, pages: int) -> PagedKV:
    """Pages full of random keys and values."""
    kv = target.new_kv(pages, PAGE)
    for x in (*kv.k, *kv.v):
        x.normal_()
    return kv


def decoding(count: int, width: int, context: int, pages: int, vocab: int) -> list[Work]:
    """So many sequences with `context` positions of KV, in random pages, and `width` ids to run."""
    rng = torch.Generator().manual_seed(count * 100 + width)
    each = -(-(context + width) // PAGE)
    order = torch.randperm(pages, generator=rng).tolist()
    request = Request(request_id="", prompt_ids=[], max_tokens=1, stop_ids=frozenset(), emit=print)
    work = []
    for i in range(count):
        mine = order[i * each : (i + 1) * each]
        ids = torch.randint(vocab, (width,), generator=rng).tolist()
        work.append(
            Work(sequence=Sequence(request, pages=mine, kv_len=context), ids=ids, choices=width)
        )
    return work


def step_graphs(
    target: GpuTarget, kv: PagedKV, batch: int, width: int, table: Tensor | None
) -> StepGraphs:
    """The graph of one (batch, width), captured."""
    pages = kv.k.shape[1]
    steps = StepGraphs(target, kv, table, pages=pages, batches=[batch], widths=[width])
    steps.capture()
    return steps
