"""Names and shapes of the tensors a checkpoint must have, and the check that they are all it has.

A tensor that is missing, of another shape, quantised or unknown is refused by name: each of them
means that the file is not the model that its config describes.
"""

from collections.abc import Callable, Mapping

from serving.checkpoint import FLOAT_DTYPES, Checkpoint
from serving.decoder_config import DecoderConfig
from serving.errors import CheckpointError

Shape = tuple[int, ...]
ROTARY_BUFFER = "rotary_emb.inv_freq"  # a constant that old files carry; computed anew
SHOWN = 5


def layer_tensors(prefix: str, sizes: DecoderConfig) -> dict[str, Shape]:
    """Tensors of one decoder layer, as Hugging Face names them."""
    hidden, inner = sizes.hidden_size, sizes.intermediate_size
    q, kv = sizes.num_heads * sizes.head_dim, sizes.num_kv_heads * sizes.head_dim
    weights = {
        "self_attn.q_proj": (q, hidden),
        "self_attn.k_proj": (kv, hidden),
        "self_attn.v_proj": (kv, hidden),
        "self_attn.o_proj": (hidden, q),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
    }
    if sizes.qk_norm:
        weights |= {"self_attn.q_norm": (sizes.head_dim,), "self_attn.k_norm": (sizes.head_dim,)}
    biased = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"] * sizes.attention_bias
    biased += ["self_attn.o_proj"] * sizes.output_bias
    biased += ["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"] * sizes.mlp_bias
    found: dict[str, Shape] = {f"{prefix}{name}.weight": shape for name, shape in weights.items()}
    return found | {f"{prefix}{name}.bias": weights[name][:1] for name in biased}


def check_tensors(
    checkpoint: Checkpoint,
    expected: Mapping[str, Shape],
    ignored: tuple[str, ...] = (),
    reason: Callable[[str], str | None] = lambda name: None,
) -> None:
    """Raises CheckpointError naming the tensor; `reason` may say what an unknown name is."""
    for name, shape in expected.items():
        stored = checkpoint.require(name, shape)
        if stored.dtype not in FLOAT_DTYPES:
            raise CheckpointError(
                f"{checkpoint.path}: tensor {stored.name} is stored as {stored.dtype}, and "
                f"quantised weights cannot be served; use one in {', '.join(FLOAT_DTYPES)}"
            )
    unknown = [
        stored.name
        for name, stored in checkpoint.tensors.items()
        if name not in expected and name not in ignored and not name.endswith(ROTARY_BUFFER)
    ]
    if not unknown:
        return
    more = f" and {len(unknown) - SHOWN} more" if len(unknown) > SHOWN else ""
    why = next(filter(None, map(reason, unknown)), "they belong to no layout that can be served")
    raise CheckpointError(
        f"{checkpoint.path}: unknown tensors {', '.join(unknown[:SHOWN])}{more}: {why}"
    )
