"""Rotary embedding of a checkpoint: `rope_theta` with `rope_scaling`, or `rope_parameters`.

The first pair is how transformers 4 writes it, the second how transformers 5 does. A parameter that
is not understood is refused, because every one of them changes the model's output.
"""

import math
from dataclasses import dataclass

from serving.fields import Fields

PLACES = ("rope_parameters", "rope_scaling")
COMMON = {"rope_type", "type", "rope_theta", "partial_rotary_factor", "finetuned"}
ORIGINAL = "original_max_position_embeddings"
PARAMETERS = {
    "default": set[str](),
    "linear": {"factor"},
    "dynamic": {"factor"},
    "llama3": {"factor", "low_freq_factor", "high_freq_factor", ORIGINAL},
    "yarn": {
        *("factor", ORIGINAL, "attention_factor", "beta_fast", "beta_slow"),
        *("mscale", "mscale_all_dim", "truncate"),
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """Base and scaling; `kind` says which of the factors count.

    "dynamic" is unscaled up to max_position_embeddings, which is where serving ends: beyond it
    transformers changes every position's frequencies with the length, so that results would depend
    on how a prompt is cut into steps.
    """

    kind: str
    theta: float
    factor: float = 1.0
    original_context: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 1.0


def read_rope(fields: Fields, max_positions: int, default_theta: float | None = None) -> Rope:
    """Raises CheckpointError naming the field; two places that disagree are refused."""
    places = [found for name in PLACES if (found := fields.object(name))]
    fields.refuse_any(["partial_rotary_factor"], "only the whole head can be rotated", (1,))
    theta = _theta(fields, places, default_theta)
    if theta <= 1:
        raise fields.refuse("rope_theta", theta, "must be above 1")
    ropes = [_scaled(place, theta, max_positions) for place in places]
    ropes = ropes or [Rope(kind="default", theta=theta)]
    if ropes[0] != ropes[-1]:
        raise fields.refuse(
            PLACES[1], fields.get(PLACES[1]), f"{PLACES[0]} says otherwise; remove one of them"
        )
    return ropes[0]


def context_limit(rope: Rope, max_positions: int) -> int:
    """Positions the model can serve; YaRN files often leave max_position_embeddings unscaled."""
    if rope.kind != "yarn":
        return max_positions
    return max(max_positions, round(rope.original_context * rope.factor))


def _theta(fields: Fields, places: list[Fields], default: float | None) -> float:
    found = {f"{place.prefix}rope_theta": place.get("rope_theta") for place in places}
    stated = {name: value for name, value in found.items() if value is not None}
    top = fields.get("rope_theta")
    for name, value in stated.items():
        if value != next(iter(stated.values())) or (top is not None and value != top):
            other = top if top is not None else next(iter(stated.values()))
            raise fields.refuse(name, value, f"rope_theta elsewhere is {other!r}; make them equal")
    for place in places:
        if place.get("rope_theta") is not None:
            return place.number("rope_theta")
    if top is None and default is not None:
        fields.warn("rope_theta", f"is absent or null, taking {default:g}")
    return fields.number("rope_theta", default)


def _scaled(place: Fields, theta: float, max_positions: int) -> Rope:
    kind_field = "type" if place.get("rope_type") is None else "rope_type"
    kind = place.choice(kind_field, tuple(PARAMETERS), "default")
    place.refuse_any(["partial_rotary_factor"], "only the whole head can be rotated", (1,))
    unknown = [name for name in place.top if name not in COMMON | PARAMETERS[kind]]
    place.refuse_any(unknown, f"is not understood with rope_type {kind!r}; remove it if unused")
    if kind == "default":
        return Rope(kind=kind, theta=theta)
    factor = place.number("factor")
    if factor < 1:
        raise place.refuse("factor", factor, "must be at least 1")
    if kind == "llama3":
        return _llama3(place, theta, factor)
    if kind == "yarn":
        return _yarn(place, theta, factor, max_positions)
    return Rope(kind=kind, theta=theta, factor=factor)


def _llama3(place: Fields, theta: float, factor: float) -> Rope:
    low, high = place.number("low_freq_factor"), place.number("high_freq_factor")
    if high <= low:
        raise place.refuse("high_freq_factor", high, f"must be above low_freq_factor ({low})")
    return Rope(
        kind="llama3",
        theta=theta,
        factor=factor,
        original_context=place.integer(ORIGINAL),
        low_freq_factor=low,
        high_freq_factor=high,
    )


def _yarn(place: Fields, theta: float, factor: float, max_positions: int) -> Rope:
    fast, slow = place.number("beta_fast", 32.0), place.number("beta_slow", 1.0)
    if fast < slow:
        raise place.refuse("beta_fast", fast, f"must not be below beta_slow ({slow})")
    return Rope(
        kind="yarn",
        theta=theta,
        factor=factor,
        original_context=place.integer(ORIGINAL, max_positions),
        beta_fast=fast,
        beta_slow=slow,
        truncate=place.boolean("truncate", True),
        attention_factor=_yarn_attention(place, factor),
    )


def _yarn_attention(place: Fields, factor: float) -> float:
    """What cosines and sines are multiplied by: as given, or by the rule of the YaRN paper."""
    if place.get("attention_factor") is not None:
        return place.number("attention_factor")
    growth = 0.1 * math.log(factor)
    mscale, all_dim = place.get("mscale"), place.get("mscale_all_dim")
    if mscale and all_dim:
        return (place.number("mscale") * growth + 1) / (place.number("mscale_all_dim") * growth + 1)
    return growth + 1
