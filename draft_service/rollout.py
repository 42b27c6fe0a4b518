"""From a block's hidden states to draft tokens: DFlash's base argmax, or the Domino rollout.

Domino (SGLang PR #36899, authors' code): the first token is the argmax of the base logits; a GRU
then reads the tokens drafted so far and a small network corrects the next base logits.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from domino_kernels.argmax import argmax
from domino_kernels.linear import Linear
from domino_kernels.native.rollout import NativeRollout
from domino_kernels.rollout_shard import VocabShard
from draft_service.dspark import DSparkSampler
from draft_service.tables import Tables
from serving.checkpoint import Checkpoint
from serving.draft_config import DraftConfig

LARGEST_ID = 0x7FFFFFFF
Observer = Callable[[Tensor, Tensor], None]


class DFlashSampler:
    """Every proposal is the argmax of its own base logits; lowest id on ties.

    target_ids [rows of lm_head]: the target's id of each row, where the head has its own ids.
    shard: the rows that lm_head has, where other ranks have the others.
    """

    def __init__(
        self, lm_head: Linear, target_ids: Tensor | None = None, shard: VocabShard | None = None
    ) -> None:
        self._lm_head, self._target_ids, self._shard = lm_head, target_ids, shard

    def propose(self, hidden: Tensor, current: Tensor) -> Tensor:
        """hidden [batch, n, hidden], current [batch] (unused) -> the target's ids [batch, n]."""
        # -1: a NaN; drafts may be wrong
        best = best_token(self._lm_head(hidden), self._shard).clamp_(min=0)
        return best if self._target_ids is None else self._target_ids[best]


class DominoSampler:
    """Sequential rollout of base logits plus causal correction.

    `candidates` = 0 scores the full vocabulary at every step. K > 0 scores, from the second token
    on, only the K tokens whose best base logit over those steps is highest (one pool a block; the
    first token is always chosen from the full vocabulary). `shard`: the tokens that this rank
    scores, all ranks follow the best of all; a pool is made of all ranks' base logits.
    `threshold`: where the C kernels do it, a block ends before the proposal whose probability times
    those of all before it is below this; 0 keeps whole blocks.
    """

    def __init__(
        self,
        config: DraftConfig,
        checkpoint: Checkpoint,
        lm_head: Linear,
        embedding: Tensor,
        *,
        candidates: int = 0,
        shard: VocabShard | None = None,
        threshold: float = 0.0,
    ) -> None:
        head = config.domino
        assert head is not None, "the checkpoint has no Domino head"
        hidden, vocab, dtype = config.hidden_size, config.vocab_size, embedding.dtype
        width, bottleneck = head.gru_hidden_dim, head.emb_dim

        def read(name: str, shape: tuple[int, ...]) -> Tensor:
            return checkpoint.tensor(name, shape, dtype).to(embedding.device)

        self._lm_head, self._embedding, self._width = lm_head, embedding, width
        self._threshold = threshold
        self._candidates = candidates if 0 < candidates < vocab else 0
        self._gru_in = Linear(read("prefix_gru.weight_ih_l0", (3 * width, hidden)))
        self._gru_state = Linear(read("prefix_gru.weight_hh_l0", (3 * width, width)))
        from_both = read("embed_proj.0.weight", (bottleneck, hidden + width))
        self._from_hidden = Linear(from_both[:, :hidden])
        self._from_state = Linear(from_both[:, hidden:])
        self._to_vocab = read("embed_proj.2.weight", (vocab, bottleneck))
        self._shard = shard
        if shard and not self._candidates:
            self._to_vocab = shard.rows(self._to_vocab)
        self._to_vocab_all = Linear(self._to_vocab)
        self._native = None if self._candidates or shard else self._whole_rollout()

    def propose(
        self, hidden: Tensor, current: Tensor, observe: Observer = lambda scores, state: None
    ) -> Tensor:
        """hidden [batch, n, hidden] (row j predicts d_{j+1}), current [batch] -> ids [batch, n], -1
        behind the end of a block.

        `observe` sees each corrected step's scores [batch, vocab] (or [batch, K]) and GRU state.
        """
        z = hidden.transpose(0, 1)
        if self._native:
            rolled = self._native.run(z, current, self._threshold)
            for step in range(1, len(z)):
                observe(rolled.scores[step], rolled.states[step])
            tokens = rolled.tokens.clamp_(min=0)
            tokens[1:][rolled.chances[1:] < self._threshold] = -1
            return tokens.T
        base, shard = self._lm_head(z).float(), self._shard
        if shard and self._candidates:
            base, shard = shard.whole(base), None
        first = best_token(base[0], shard)
        if len(z) == 1:
            return first[:, None]
        pool = _Pool(base[1:], self._to_vocab, self._candidates) if self._candidates else None
        from_hidden = self._from_hidden(z)
        state = z.new_zeros(len(current), self._width)
        state = self._gru(self._gru(state, current), first)
        drafted = [first]
        for j in range(1, len(z)):
            bottleneck = F.silu(from_hidden[j] + self._from_state(state))
            if pool:
                scores = pool.scores(j - 1, bottleneck)
                token = pool.ids(argmax(scores))
            else:
                scores = self._to_vocab_all(bottleneck, onto=base[j])
                token = best_token(scores, shard)
            observe(scores, state)
            drafted.append(token)
            if j + 1 < len(z):
                state = self._gru(state, token)
        return torch.stack(drafted, dim=1)

    def _whole_rollout(self) -> NativeRollout | None:
        linears = {
            "lm_head": self._lm_head.native,
            "gru_in": self._gru_in.native,
            "gru_state": self._gru_state.native,
            "from_hidden": self._from_hidden.native,
            "from_state": self._from_state.native,
            "to_vocab": self._to_vocab_all.native,
        }
        native = {name: linear for name, linear in linears.items() if linear}
        return NativeRollout(self._embedding, **native) if len(native) == len(linears) else None

    def _gru(self, state: Tensor, token: Tensor) -> Tensor:
        """One GRU cell (PyTorch's gate order r, z, n; no biases): [batch, G] -> [batch, G]."""
        from_token = self._gru_in(F.embedding(token, self._embedding)).chunk(3, dim=-1)
        from_state = self._gru_state(state).chunk(3, dim=-1)
        reset = torch.sigmoid(from_token[0] + from_state[0])
        update = torch.sigmoid(from_token[1] + from_state[1])
        new = torch.tanh(from_token[2] + reset * from_state[2])
        return torch.lerp(new, state, update)


def best_token(scores: Tensor, shard: VocabShard | None) -> Tensor:
    """scores [.., tokens] of this rank -> [..] the id of the highest of all ranks', the lowest id
    on ties; alone, -1 where one is no number."""
    best = argmax(scores)
    if shard is None:
        return best
    local = best.clamp(min=0)
    value = scores.gather(-1, local[..., None])[..., 0].float()
    bits = torch.where(value == 0, 0.0, value).view(torch.int32)
    ordered = (bits ^ ((bits >> 31) & LARGEST_ID)).long()
    keys = (ordered << 32) + (LARGEST_ID - local - shard.start)
    shard.maximum(keys)
    return LARGEST_ID - (keys & 0xFFFFFFFF)


class _Pool:
    """The K candidates of each sequence's block, ids ascending; the lowest ones win all ties."""

    def __init__(self, base: Tensor, to_vocab: Tensor, candidates: int) -> None:
        """base [n - 1, batch, vocab], to_vocab [vocab, E]."""
        best = base.amax(0)
        least = best.topk(candidates, sorted=False).values.amin(-1, keepdim=True)
        above, equal = best > least, best == least
        room = candidates - above.sum(-1, keepdim=True)
        chosen = above | (equal & (equal.cumsum(-1) <= room))
        self._ids = chosen.nonzero()[:, 1].view(-1, candidates)
        self._base = base.gather(2, self._ids.expand(len(base), *self._ids.shape))
        self._to_vocab = to_vocab[self._ids]

    def scores(self, step: int, bottleneck: Tensor) -> Tensor:
        """bottleneck [batch, E] -> scores of the candidates [batch, K]."""
        correction = torch.bmm(self._to_vocab, bottleneck[:, :, None]).squeeze(2)
        return self._base[step] + correction.float()

    def ids(self, best: Tensor) -> Tensor:
        """Places in the pool [batch] -> token ids [batch]."""
        return self._ids.gather(1, best[:, None]).squeeze(1)


Sampler = DFlashSampler | DominoSampler | DSparkSampler


class Samplers(NamedTuple):
    """What a checkpoint can run: DFlash always, another mode when it has that one's head."""

    dflash: DFlashSampler
    domino: DominoSampler | None = None
    dspark: DSparkSampler | None = None


def make_samplers(
    config: DraftConfig,
    checkpoint: Checkpoint,
    tables: Tables,
    candidates: int,
    shard: VocabShard | None = None,
    threshold: float = 0.0,
) -> Samplers:
    """The samplers this checkpoint can run; shard: this rank's rows of the head.

    threshold: DominoSampler's.
    """
    embedding, lm_head = tables.embedding, tables.lm_head
    dflash = DFlashSampler(lm_head, tables.target_ids, shard)
    if config.dspark:
        return Samplers(dflash, dspark=DSparkSampler(config, checkpoint, lm_head, embedding))
    if config.domino is None:
        return Samplers(dflash)
    domino = DominoSampler(
        config,
        checkpoint,
        lm_head,
        embedding,
        candidates=candidates,
        shard=shard,
        threshold=threshold,
    )
    return Samplers(dflash, domino)
