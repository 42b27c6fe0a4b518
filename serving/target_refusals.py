"""Targets that cannot be served, recognised by a field of their config and refused by name."""

from typing import Any

from serving.fields import Fields

NOTHING: tuple[Any, ...] = (None, False, 0, {}, [])
ONE = (*NOTHING, 1)
QUANTISED = "quantised weights cannot be served; use the unquantised checkpoint"
EXPERTS = "mixture-of-experts models cannot be served; use a dense Llama, Qwen2 or Qwen3"
MULTIMODAL = "multimodal models cannot be served; use the text-only checkpoint"
PIPELINE = "pipeline parallelism is not supported; merge the stages into one checkpoint"
DRAFT = "this is a draft; give it as --draft, and its target as --target"
ADAPTER = "LoRA adapters cannot be served; merge the adapter into its base model"

REFUSED: dict[str, str] = {
    "dflash_config": DRAFT,
    "speculators_model_type": DRAFT,
    "projector_type": DRAFT,
    "quantization_config": QUANTISED,
    "compression_config": QUANTISED,
    "num_experts": EXPERTS,
    "num_local_experts": EXPERTS,
    "n_routed_experts": EXPERTS,
    "num_experts_per_tok": EXPERTS,
    "moe_intermediate_size": EXPERTS,
    "vision_config": MULTIMODAL,
    "audio_config": MULTIMODAL,
    "text_config": MULTIMODAL,
    "thinker_config": MULTIMODAL,
    "image_token_id": MULTIMODAL,
    "peft_type": ADAPTER,
}
PIPELINE_FIELDS = (
    "pipeline_parallel_size",
    "pipeline_model_parallel_size",
    "pp_size",
    "num_pipeline_stages",
)


def refuse_unsupported(fields: Fields) -> None:
    """Raises CheckpointError naming the field that makes the model one that cannot be served."""
    for name, remedy in REFUSED.items():
        fields.refuse_any([name], remedy, NOTHING)
    fields.refuse_any(PIPELINE_FIELDS, PIPELINE, ONE)
    if fields.get("auto_map"):
        fields.warn("auto_map", "names code that is not run; the model is read as model_type says")


def refuse_sliding(fields: Fields, num_layers: int) -> None:
    """Raises CheckpointError when any layer's attention is not full (Qwen's rule for layers)."""
    kinds = fields.get("layer_types")
    if kinds is not None:
        if not isinstance(kinds, list) or any(kind != "full_attention" for kind in kinds):
            raise fields.refuse("layer_types", kinds, "only full_attention layers can be served")
        return
    slides = fields.get("use_sliding_window") and fields.get("sliding_window") is not None
    if slides and fields.integer("max_window_layers", 28, minimum=0) < num_layers:
        raise fields.refuse(
            "use_sliding_window", True, "sliding targets cannot be served; use full attention"
        )
