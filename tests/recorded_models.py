"""The recorded tiny models of tests/golden: a target, and drafts trained on it."""

from pathlib import Path

_GOLDEN = Path(__file__).parent / "golden"

TARGET = _GOLDEN / "target_qwen3_tiny"
DOMINO_SHIFT = _GOLDEN / "f2_domino_generate_shift"
DOMINO_NOSHIFT = _GOLDEN / "f2_domino_generate_noshift"
DFLASH = _GOLDEN / "f2_dflash_generate"
VOCAB, HIDDEN, BLOCK = 257, 64, 8
EASY_PROMPT = [177, 112, 108, 141, 92]  # its continuation is often drafted right
