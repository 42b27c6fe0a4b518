"""What each rank of a group holds, and how it learns which rank it is."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from serving.options import OptionError
from serving.target_config import open_target
from tests.tiny_models import VOCAB, write_target
from verify_service.ranks import Ranks, own_device, place
from verify_service.shards import Shard
from verify_service.vocabulary import Vocabulary


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("total", [7, 48, VOCAB])
def test_shares_are_all_of_it_once(total: int, size: int) -> None:
    """An id that no rank has is never chosen; one that two have is counted twice in sums."""
    shares = [Ranks(rank, size).share(total) for rank in range(size)]
    held = [i for share in shares for i in range(share.start, share.stop)]
    assert held == list(range(total))
    sizes = [share.stop - share.start for share in shares]
    assert max(sizes) - min(sizes) <= 1 and sizes == sorted(sizes, reverse=True)


def test_the_environment_names_the_rank() -> None:
    """Torchrun's variables; a rank out of range would wait for others for ever."""
    assert place({}) == Ranks(0, 1)
    assert place({"RANK": "1", "WORLD_SIZE": "2"}) == Ranks(1, 2)
    for rank, size in (("2", "2"), ("-1", "2"), ("one", "2"), ("0", "0")):
        with pytest.raises(OptionError, match="RANK"):
            place({"RANK": rank, "WORLD_SIZE": size})
    second = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}
    assert own_device("cuda", second) == "cuda:1"
    assert own_device("cuda", {}) == "cuda", "whichever is the current one"
    assert own_device("cuda:3", second) == "cuda:3"
    assert own_device("cpu", second) == "cpu"


def test_more_ranks_than_kv_heads_are_refused(tmp_path: Path) -> None:
    """A rank without heads would fail deep inside a kernel."""
    write_target("qwen3", tmp_path)
    _, config = open_target(tmp_path)
    with pytest.raises(OptionError, match=r"tp: 3 exceeds the target's 2 KV heads"):
        Shard(config, Ranks(0, 3))


@pytest.mark.parametrize("after_sum", [False, True])
def test_parts_make_up_the_layer(tmp_path: Path, after_sum: bool) -> None:
    """Parts of q, k, v, gate, up are stacked, parts of o and down added: x W^T + b is the same."""
    write_target("llama_bias", tmp_path)
    _, config = open_target(tmp_path)
    config = replace(config, intermediate_size=77, mlp_bias=True)
    drawn: dict[str, torch.Tensor] = {}

    def read(name: str, shape: tuple[int, ...]) -> torch.Tensor:
        return drawn.setdefault(name, torch.randn(shape, dtype=torch.float64))

    shards = [Shard(config, Ranks(rank, 2)) for rank in range(2)]
    parts = [shard.layer(read, bias_after_sum=after_sum) for shard in shards]
    own = [shard.config for shard in shards]
    hidden, dim = config.hidden_size, config.head_dim
    wide = [("self_attn.q_proj", "num_heads", dim), ("self_attn.k_proj", "num_kv_heads", dim),
            ("mlp.up_proj", "intermediate_size", 1)]  # fmt: skip
    for name, field, by in wide:
        sizes = [getattr(c, field) * by for c in own]
        rows = [p(f"{name}.weight", (n, hidden)) for p, n in zip(parts, sizes, strict=True)]
        assert torch.equal(torch.cat(rows), drawn[f"{name}.weight"])
        biases = [p(f"{name}.bias", (n,)) for p, n in zip(parts, sizes, strict=True)]
        assert torch.equal(torch.cat(biases), drawn[f"{name}.bias"])
    sizes = [c.intermediate_size for c in own]
    columns = [p("mlp.down_proj.weight", (hidden, n)) for p, n in zip(parts, sizes, strict=True)]
    assert torch.equal(torch.cat(columns, 1), drawn["mlp.down_proj.weight"])
    biases = [p("mlp.down_proj.bias", (hidden,)) for p in parts]
    assert torch.equal(biases[0], drawn["mlp.down_proj.bias"])
    assert torch.equal(biases[1], biases[0] if after_sum else torch.zeros_like(biases[0]))
    norm = parts[1]("input_layernorm.weight", (hidden,))
    assert torch.equal(norm, drawn["input_layernorm.weight"]), "what is not cut is whole"


class Recorded(Ranks):
    """Ranks whose other side says `other`, so that one process can merge both halves."""

    other: torch.Tensor

    def highest(self, keys: torch.Tensor) -> torch.Tensor:
        if not hasattr(Recorded, "other"):
            Recorded.other = keys
            return keys
        return torch.maximum(keys, Recorded.other)


def test_the_best_of_two_halves_is_the_best_of_all() -> None:
    """Ties go to the lowest id, wherever it is; a NaN in any half is seen by all ranks."""
    logits = torch.randn(5, VOCAB, generator=torch.Generator().manual_seed(1))
    logits[0, 3] = logits[0, 100] = 9.0
    logits[1, 120] = -0.0
    logits[1, :120] = logits[1, 121:] = -1.0
    logits[2, 4] = torch.nan
    logits[3, 130] = torch.inf
    best = []
    for rank in (0, 1):
        ranks = Recorded(rank, 2)
        own = ranks.share(VOCAB)
        best.append(Vocabulary(VOCAB, own, ranks).best(logits[:, own].contiguous()))
    ids, values = best[1]
    assert ids.tolist() == [3, 120, -1, -1, int(logits[4].argmax())]
    assert values[0] == 9 and values[1] == 0 and not values[2:4].isfinite().any()
