"""What is known of a draft once its config is read: the same for both checkpoint formats."""

from dataclasses import dataclass
from typing import Literal, Protocol

from serving.decoder_config import DecoderConfig


class TargetSizes(Protocol):
    """What a draft is checked against."""

    @property
    def num_layers(self) -> int: ...
    @property
    def hidden_size(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DominoHead:
    """Sizes of the causal correction: GRU width G, bottleneck width E."""

    gru_hidden_dim: int
    emb_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DSparkHead:
    """The Markov bias: its kind and rank. confidence: whether a confidence head is there;
    reads_markov: whether that one reads the previous token's embedding too."""

    kind: Literal["vanilla", "gated", "rnn"]
    rank: int
    confidence: bool
    reads_markov: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerAttention:
    """What the queries of a block see in one layer.

    causal: within the block, only what is before. window: how many positions back, the query's own
    included; None is all. window_moves: the window's start moves with the query; otherwise it is
    `window` positions before the block, and the block itself is not cut.
    """

    causal: bool = False
    window: int | None = None
    window_moves: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftConfig(DecoderConfig):
    """Shapes and constants of a draft model.

    vocab_size counts the target's ids, which go in and come out. draft_vocab_size counts the rows
    of the draft's own head; where it is smaller, `d2t` maps them. target_layer_ids: layers whose
    OUTPUT is tapped, counted from 0, in the order fc has them. shift_label: row j of a block
    proposes block position j + 1, so that row 0 counts; otherwise row j proposes position j.
    """

    format: Literal["authors", "speculators", "deepspec"]
    block_size: int
    target_layer_ids: tuple[int, ...]
    mask_token_id: int
    attention: tuple[LayerAttention, ...]
    shift_label: bool
    domino: DominoHead | None
    draft_vocab_size: int
    own_embedding: bool = False
    own_head: bool = False
    dspark: DSparkHead | None = None

    @property
    def max_draft_tokens(self) -> int:
        """Most proposals of one block: B where row 0 counts, B - 1 otherwise."""
        return self.block_size if self.shift_label else self.block_size - 1
