"""What a target's config.json says: a dense Llama, Qwen2 or Qwen3; others are refused by name."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serving.checkpoint import Checkpoint
from serving.decoder_config import DecoderConfig, Defaults, read_decoder
from serving.errors import CheckpointError
from serving.fields import Fields
from serving.json_file import read_json_object
from serving.target_refusals import refuse_sliding, refuse_unsupported
from serving.tensor_names import Shape, check_tensors, layer_tensors

# transformers' own defaults for what old files leave out.
DEFAULTS = {
    "llama": Defaults(max_positions=2048, rope_theta=10000.0),
    "qwen2": Defaults(max_positions=32768),
    "qwen3": Defaults(max_positions=32768, head_dim=128),
}
EMBEDDING, LM_HEAD = "model.embed_tokens.weight", "lm_head.weight"
GENERATION_FILE = "generation_config.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetConfig(DecoderConfig):
    """Shapes and constants of a target model."""

    model_type: str
    tied_embeddings: bool
    eos_token_ids: tuple[int, ...]

    @property
    def lm_head_name(self) -> str:
        """Name of the output projection's tensor."""
        return EMBEDDING if self.tied_embeddings else LM_HEAD


def open_target(path: Path, *, weights: bool = True) -> tuple[Checkpoint, TargetConfig]:
    """A target whose config and tensors fit; raises CheckpointError naming what does not.

    weights=False takes a config without weights as well.
    """
    checkpoint = Checkpoint(path, weights=weights)
    config = load_target_config(checkpoint)
    if checkpoint.tensors:
        check_tensors(checkpoint, target_tensors(config), _tied_copy(config, checkpoint))
    return checkpoint, config


def load_target_config(checkpoint: Checkpoint) -> TargetConfig:
    """Reads and checks the config; raises CheckpointError naming the field and the value."""
    fields = Fields(checkpoint.config_file, checkpoint.config)
    refuse_unsupported(fields)
    kind = fields.choice("model_type", tuple(DEFAULTS))
    sizes = read_decoder(fields, DEFAULTS[kind])
    refuse_sliding(fields, sizes["num_layers"])
    bias = kind == "qwen2" or fields.boolean("attention_bias", False)
    return TargetConfig(
        **sizes,
        model_type=kind,
        attention_bias=bias,
        output_bias=bias and kind != "qwen2",
        mlp_bias=kind == "llama" and fields.boolean("mlp_bias", False),
        qk_norm=kind == "qwen3",
        tied_embeddings=fields.boolean("tie_word_embeddings", False),
        eos_token_ids=_eos_token_ids(fields, checkpoint.path, sizes["vocab_size"]),
        warnings=tuple(fields.warnings),
    )


def target_tensors(config: TargetConfig) -> dict[str, Shape]:
    """Every tensor of the model by name."""
    table = (config.vocab_size, config.hidden_size)
    found: dict[str, Shape] = {EMBEDDING: table, "model.norm.weight": (config.hidden_size,)}
    for layer in range(config.num_layers):
        found |= layer_tensors(f"model.layers.{layer}.", config)
    return found | {config.lm_head_name: table}


def _tied_copy(config: TargetConfig, checkpoint: Checkpoint) -> tuple[str, ...]:
    """A head that a tied checkpoint stores as well; refused when it is not the embedding."""
    if not config.tied_embeddings or LM_HEAD not in checkpoint.tensors:
        return ()
    embedding, head = checkpoint.tensors[EMBEDDING], checkpoint.tensors[LM_HEAD]
    if embedding.shape != head.shape or checkpoint.digest(EMBEDDING) != checkpoint.digest(LM_HEAD):
        raise CheckpointError(
            f"{checkpoint.path}: tie_word_embeddings is true, but {LM_HEAD} is not the embedding; "
            "set it to false or remove the tensor"
        )
    return (LM_HEAD,)


def _eos_token_ids(fields: Fields, path: Path, vocab: int) -> tuple[int, ...]:
    """generation_config.json's ids win over config.json's, as in transformers."""
    file = path / GENERATION_FILE
    if file.exists():
        generation = Fields(file, read_json_object(file))
        if generation.get("eos_token_id") is not None:
            fields = generation
    value: Any = fields.get("eos_token_id")
    ids = value if isinstance(value, list) else [] if value is None else [value]
    for token in ids:
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < vocab:
            raise fields.refuse("eos_token_id", value, f"must be ids below vocab_size ({vocab})")
    return tuple(dict.fromkeys(ids))
