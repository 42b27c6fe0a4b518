"""Names and shapes of a draft's tensors, in both formats, and the older names they may have."""

from serving.checkpoint import Checkpoint
from serving.draft_config import DraftConfig
from serving.draft_refusals import unknown_tensor
from serving.errors import CheckpointError
from serving.tensor_names import Shape, check_tensors, layer_tensors

ALIASES = {
    "encoder.fc.weight": "fc.weight",
    "encoder.output_norm_enc.weight": "hidden_norm.weight",
}
DOMINO = (
    "prefix_gru.weight_ih_l0",
    "prefix_gru.weight_hh_l0",
    "embed_proj.0.weight",
    "embed_proj.2.weight",
)
W1, W2 = "markov_head.markov_w1.weight", "markov_head.markov_w2.weight"
GATE, JOINT, CONFIDENCE = (
    "markov_head.gate_proj.",
    "markov_head.joint_proj.",
    "confidence_head.proj.",
)
TO_TARGET, FROM_TARGET = "d2t", "t2d"  # ids of a reduced vocabulary, and which target ids it has
INTEGERS = ("I64", "I32")


def draft_tensor_name(stored: str) -> str:
    """The name a tensor is read by: without `model.` and `logit_head.`, aliases resolved."""
    name = stored.removeprefix("model.").removeprefix("logit_head.")
    return ALIASES.get(name, name)


def draft_tensors(config: DraftConfig) -> dict[str, Shape]:
    """Every weight of the draft by name."""
    hidden, vocab, taps = config.hidden_size, config.vocab_size, len(config.target_layer_ids)
    found: dict[str, Shape] = {
        "fc.weight": (hidden, taps * hidden),
        "hidden_norm.weight": (hidden,),
        "norm.weight": (hidden,),
    }
    for layer in range(config.num_layers):
        found |= layer_tensors(f"layers.{layer}.", config)
    if config.own_embedding:
        found["embed_tokens.weight"] = (vocab, hidden)
    if config.own_head:
        found["lm_head.weight"] = (config.draft_vocab_size, hidden)
    found |= dspark_tensors(config) if config.dspark else {}
    return found | (_domino_tensors(config) if config.domino else {})


def check_draft_tensors(checkpoint: Checkpoint, config: DraftConfig) -> None:
    """Raises CheckpointError naming the tensor that is missing, unknown or of another shape."""
    head = [checkpoint.tensors[name].name for name in DOMINO if name in checkpoint.tensors]
    if head and not config.domino:
        raise CheckpointError(
            f"{checkpoint.config_file}: projector_type is absent or null, but the file has the "
            f'Domino head ({", ".join(head)}); set dflash_config.projector_type to "domino"'
        )
    maps = (TO_TARGET, FROM_TARGET) if config.format == "speculators" else (FROM_TARGET,)
    check_tensors(checkpoint, draft_tensors(config), maps, unknown_tensor)
    if config.draft_vocab_size < config.vocab_size:
        stored = checkpoint.require(TO_TARGET, (config.draft_vocab_size,))
        if stored.dtype not in INTEGERS:
            raise CheckpointError(
                f"{checkpoint.path}: tensor d2t is stored as {stored.dtype}, expected offsets in "
                f"{' or '.join(INTEGERS)}"
            )


def _domino_tensors(config: DraftConfig) -> dict[str, Shape]:
    head = config.domino
    assert head is not None
    hidden, width, bottleneck = config.hidden_size, head.gru_hidden_dim, head.emb_dim
    shapes = (
        (3 * width, hidden),
        (3 * width, width),
        (bottleneck, hidden + width),
        (config.vocab_size, bottleneck),
    )
    return dict(zip(DOMINO, shapes, strict=True))


def dspark_tensors(config: DraftConfig) -> dict[str, Shape]:
    """Weights of the Markov and the confidence head."""
    head = config.dspark
    assert head is not None
    hidden, vocab, rank = config.hidden_size, config.vocab_size, head.rank
    found: dict[str, Shape] = {W1: (vocab, rank), W2: (config.draft_vocab_size, rank)}
    if head.kind == "gated":
        found |= {GATE + "weight": (rank, hidden + rank), GATE + "bias": (rank,)}
    if head.kind == "rnn":
        found |= {JOINT + "weight": (3 * rank, 2 * rank + hidden), JOINT + "bias": (3 * rank,)}
    if head.confidence:
        width = hidden + rank * head.reads_markov
        found |= {CONFIDENCE + "weight": (1, width), CONFIDENCE + "bias": (1,)}
    return found
