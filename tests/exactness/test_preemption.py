"""Preempted requests: their positions run anew, their output does not change."""

from pathlib import Path

import pytest

from domino_cli.in_process import collect
from tests.engines import MODES, engines
from tests.standing_still import standing_still

GOLDEN = Path(__file__).parent.parent / "golden"


@pytest.mark.parametrize("mode", ["ar", "dflash", "domino"])
def test_a_cache_too_small_for_all_gives_everyone_the_same_output(mode: str) -> None:
    """Recomputed KV in other chunks, or rows sent twice to the draft, would change tokens."""
    draft = GOLDEN / "f2_domino_generate_shift"
    cases = [([3 + i, 60 + 7 * i, 9] * (1 + i), 40 + 5 * i) for i in range(5)]
    target = GOLDEN / "target_qwen3_tiny"
    with engines(target, draft, page_size=8, kv_tokens=96, prefill_tokens=16) as running:
        alone = [collect(running.submit(prompt, count))[0] for prompt, count in cases]
        assert running.engine.scheduler.num_preempted == 0
        with standing_still(running.engine, after=0):
            events = [
                running.submit(prompt, count, mode=MODES[mode], draft_tokens=7 * (mode != "ar"))
                for prompt, count in cases
            ]
        assert [collect(event)[0] for event in events] == alone
        assert running.engine.scheduler.num_preempted > 0, "nobody was preempted: nothing tested"
