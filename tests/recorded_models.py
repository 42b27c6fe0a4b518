"""The recorded tiny models of tests/golden: a target, and drafts trained on it."""

from pathlib import Path

_GOLDEN = Path(__file__).parent / "golden"

TARGET = _GOLDEN / "target_qwen3_tiny"
DOMINO_SHIFT = _GOLDEN / "f2_domino_generate_shift"
DOMINO_NOSHIFT = _GOLDEN / "f2_domino_generate_noshift"
DFLASH = _GOLDEN / "f2_dflash_generate"
VOCAB, HIDDEN, BLOCK = 257, 64, 8

# The drafts were trained on the first three's continuations: many proposals are right there.
PROMPTS = (
    [177, 112, 108, 141, 92],
    [104, 51, 121, 70, 225, 163, 34, 218, 121, 61, 127, 123, 219, 187, 122, 204, 199],
    [182],
    [45, 45, 200, 7] * 12,
)
