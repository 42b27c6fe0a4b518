"""Operations of a training step, counted by hand for a draft of round sizes."""

from dataclasses import replace

from benchmarks.gpu_draft_model import qwen3_8b_domino
from benchmarks.gpu_verify_model import qwen3_8b
from benchmarks.training_flops import Work, draft_flops, target_flops, total


def test_parts_by_hand() -> None:
    """A wrong count makes a slow trainer look fast."""
    config = replace(
        qwen3_8b_domino(),
        hidden_size=10,
        intermediate_size=20,
        num_heads=2,
        num_kv_heads=1,
        head_dim=5,
        vocab_size=100,
        num_layers=1,
        target_layer_ids=(1, 2),
    )
    work = Work(rows=1, tokens=8, slots=4, pairs=30)
    found = draft_flops(config, work)
    # q and o 2 x 10 x 10, gate, up and down 3 x 10 x 20; k and v 2 x 10 x 5 of 12 places
    assert found["layers"] == 2 * 3 * (4 * (200 + 600) + 12 * 100)
    assert found["attention"] == 2 * 3 * 2 * 30 * 10
    assert found["features"] == 2 * 2 * 8 * 20 * 10
    assert found["lm_head"] == 2 * 2 * 4 * 10 * 100
    no_head = draft_flops(replace(config, domino=None), work)
    assert no_head["head"] == 0 and total(no_head) == total(found) - found["head"]


def test_the_published_sizes() -> None:
    """SpecForge states 45 TFLOP a sample with the logits recomputed; ours leaves that out."""
    pairs = 256 * 16 * (1536 + 16)
    work = Work(rows=1, tokens=3072, slots=4096, pairs=pairs)
    assert 36e12 < total(draft_flops(qwen3_8b_domino(), work)) < 42e12
    # 7 billion parameters without embedding and head, two operations each, and attention
    assert 43e12 < target_flops(qwen3_8b(), work) < 48e12
