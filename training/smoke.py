"""`train smoke`: a tiny draft learns one random batch by heart, or something is misaligned.

Random target features and tokens, nothing to generalise from: a wrong mask, label or GRU input
leaves the accuracy low. The lines have the form that verl-SpeCo's smoke log has.
"""

from collections.abc import Callable

import torch

from serving.draft_config import DominoHead, DraftConfig, LayerAttention
from serving.rope_config import Rope
from training.cross_entropy import Head
from training.curriculum import base_share
from training.draft import DraftForward
from training.objective import Objective
from training.rows import Anchors, Rows, candidates, choose_anchors, one_document
from training.start import new_weights

STEPS, CURRICULUM, RATE = 120, 60, 3e-3
HIDDEN, VOCAB, TOKENS, ANCHORS, PROMPT = 64, 512, 91, 24, 8
MASK = VOCAB - 1
GOAL = 0.99


def smoke(report: Callable[[str], None], *, shift: bool = True) -> bool:
    """Whether accuracy reached its goal and the correction helps."""
    generator = torch.Generator().manual_seed(0)
    objective, rows, anchors = _setting(generator, shift)
    draft = objective.draft.config
    weights = new_weights(draft, 0, torch.ones(HIDDEN) * 2)
    for weight in weights.values():
        weight.requires_grad_()
    optimizer = torch.optim.AdamW(weights.values(), lr=RATE, weight_decay=0.0)
    accuracy = final = base = 0.0
    first: tuple[float, ...] = ()
    for step in range(STEPS):
        share = base_share(step, STEPS, steps=CURRICULUM)
        sums = objective.sums(weights, rows, anchors, torch.tensor(share))
        final, base = (float(x / sums.weight) for x in (sums.final, sums.base))
        if step % 10 == 0 or step == STEPS - 1:
            found = objective.measure(weights, rows, anchors).figures()
            accuracy = found["accuracy"]
            first = first or (final, base, accuracy)
            report(
                f"[smoke] step {step:3}  final_loss={final:.4f}  base_loss={base:.4f}  "
                f"final_acc={accuracy:.4f}  base_acc={found['base_accuracy']:.4f}  "
                f"accept_len={found['accept_len']:.3f}  lambda_base={share:.3f}"
            )
        optimizer.zero_grad()
        (sums.loss / sums.weight).backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(weights.values(), 1.0)
        optimizer.step()
    learnt = accuracy >= GOAL and final < 0.7 * base
    report(
        f"[smoke] DONE  final_loss {first[0]:.4f}->{final:.4f}  "
        f"base_loss {first[1]:.4f}->{base:.4f}  final_acc {first[2]:.4f}->{accuracy:.4f}"
    )
    report("learnt by heart" if learnt else f"NOT learnt: accuracy {accuracy:.3f}, goal {GOAL}")
    return learnt


def _setting(generator: torch.Generator, shift: bool) -> tuple[Objective, Rows, Anchors]:
    draft = _draft(shift)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    embedding, head = normal(VOCAB, HIDDEN), normal(VOCAB, HIDDEN) / HIDDEN**0.5
    ids = torch.randint(0, MASK, (1, TOKENS), generator=generator)
    supervised = torch.arange(TOKENS)[None] >= PROMPT
    rows = one_document(ids, supervised, normal(1, TOKENS, 2 * HIDDEN))
    uniform = torch.rand(1, TOKENS - 1, generator=generator)
    anchors = choose_anchors(uniform, candidates(rows.supervised, rows.starts), ANCHORS)
    forward = DraftForward(draft, embedding)
    return Objective(draft=forward, head=Head(lm_head=head), gamma=7.0), rows, anchors


def _draft(shift: bool) -> DraftConfig:
    return DraftConfig(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=2 * HIDDEN,
        num_layers=1,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        rms_norm_eps=1e-6,
        rope=Rope(kind="default", theta=10000.0),
        max_context=512,
        attention_bias=False,
        output_bias=False,
        mlp_bias=False,
        qk_norm=True,
        format="authors",
        block_size=8,
        target_layer_ids=(1, 3),
        mask_token_id=MASK,
        attention=(LayerAttention(),),
        shift_label=shift,
        domino=DominoHead(gru_hidden_dim=32, emb_dim=16),
        draft_vocab_size=VOCAB,
    )
