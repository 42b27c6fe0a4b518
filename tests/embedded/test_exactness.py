"""A real model's speculative output is its plain output, token for token, and bit for bit below.

Tiny models can hide what only shows at real sizes: other code paths of the matrix products, and
gaps between the best two tokens that an order of summation closes.
"""

from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from domino_cli.in_process import InProcess, collect
from domino_kernels.attention import Batch, Span
from serving.target_config import open_target
from tests.engines import MODES
from verify_service.target import Target

pytestmark = pytest.mark.embedded

TOKENS = 48
PAGE_SIZE = 128
ARMS = [("domino", n) for n in (1, 4, 7, 15, 16)] + [("dflash", n) for n in (7, 15)]


@pytest.fixture(scope="module")
def plain(embedded_engines: InProcess, prompts: list[list[int]]) -> list[list[int]]:
    """What plain decoding answers to each prompt, alone."""
    return [collect(embedded_engines.submit(prompt, TOKENS))[0] for prompt in prompts]


def test_plain_decoding_equals_transformers(
    embedded_target: Path, prompts: list[list[int]], plain: list[list[int]]
) -> None:
    """Everything below compares with plain decoding, which needs an oracle of its own."""
    oracle = AutoModelForCausalLM.from_pretrained(embedded_target, dtype=torch.float32).eval()
    whole = oracle.generate(
        torch.tensor([prompts[0]]),
        attention_mask=torch.ones(1, len(prompts[0]), dtype=torch.long),
        max_new_tokens=32,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    assert plain[0][:32] == whole[0, len(prompts[0]) :].tolist()


@pytest.mark.parametrize(("mode", "draft_tokens"), ARMS)
def test_every_width_in_a_batch_of_three(
    embedded_engines: InProcess,
    prompts: list[list[int]],
    plain: list[list[int]],
    mode: str,
    draft_tokens: int,
) -> None:
    """Widths change the shape of every product; none may change a token."""
    running = [
        embedded_engines.submit(prompt, TOKENS, mode=MODES[mode], draft_tokens=draft_tokens)
        for prompt in prompts
    ]
    ended = [collect(events) for events in running]
    assert [ids for ids, _ in ended] == plain
    accepted = sum(done.speculation.accepted_tokens for _, done in ended)
    assert accepted > TOKENS // 2, "hardly anything accepted, hardly anything tested"


def test_alone(
    embedded_engines: InProcess, prompts: list[list[int]], plain: list[list[int]]
) -> None:
    """One sequence makes the smallest matrices of all."""
    events = embedded_engines.submit(prompts[1], TOKENS, mode=MODES["domino"], draft_tokens=15)
    assert collect(events)[0] == plain[1]


def test_eight_staggered_requests_of_every_mode(
    embedded_engines: InProcess, prompts: list[list[int]], plain: list[list[int]]
) -> None:
    """Each starts at another's first token, so that prompts, plain and drafted steps mix."""
    running = []
    for i in range(8):
        mode, draft_tokens = [("ar", 0), ("domino", 15), ("dflash", 7), ("domino", 4)][i % 4]
        count = 10 + 3 * i
        events = embedded_engines.submit(
            prompts[i % 3], count, mode=MODES[mode], draft_tokens=draft_tokens
        )
        first = events.get()
        running.append((events, first, plain[i % 3][:count]))
    for events, first, expected in running:
        assert [*first.token_ids, *collect(events)[0]] == expected  # type: ignore[union-attr]


@torch.inference_mode()
def test_logits_have_the_same_bits_at_every_width(
    embedded_target: Path, prompts: list[list[int]], plain: list[list[int]]
) -> None:
    """Equal tokens on some prompts are luck; equal bits are a construction."""
    target = load_target(embedded_target)
    lines = [torch.tensor([*p, *a])[:64] for p, a in zip(prompts, plain, strict=True)]
    start = 48
    kv = target.new_kv(3, PAGE_SIZE)

    def logits(spans: list[tuple[int, int, int]]) -> list[Tensor]:
        """Of (line, first position, positions) each, in one pass."""
        ids = torch.cat([lines[i][first : first + n] for i, first, n in spans])
        batch = Batch(
            [Span(start=first, count=n, pages=[i]) for i, first, n in spans],
            PAGE_SIZE,
            torch.device("cpu"),
        )
        x, _ = target.forward(ids, batch, kv)
        return list(torch.split(target.logits(x), [n for *_, n in spans]))

    logits([(i, 0, start) for i in range(3)])
    in_one_pass = logits([(0, start, 16)])[0]
    one_by_one = torch.cat([logits([(0, start + j, 1)])[0] for j in range(16)])
    assert torch.equal(in_one_pass, one_by_one)
    in_company = logits([(1, start, 16), (0, start, 16), (2, start, 7)])[1]
    assert torch.equal(in_one_pass, in_company)
    for width in (2, 5, 8):
        starts = range(0, 16 - width + 1, width)
        in_parts = torch.cat([logits([(0, start + j, width)])[0] for j in starts])
        assert torch.equal(in_one_pass[: len(in_parts)], in_parts)


def load_target(folder: Path) -> Target:
    checkpoint, config = open_target(folder)
    return Target(config, checkpoint, dtype=torch.float32, device=torch.device("cpu"))
