"""The target's generation_config.json in, the sampling of requests that name none out."""

import json
from pathlib import Path
from typing import Any, Final

from domino_serve.v1.sampling_pb2 import Sampling
from serving.errors import BadRequest, StartError
from serving.sampling import check_sampling, is_greedy

_FIELDS: Final = ("temperature", "top_k", "top_p", "min_p")
# What changes logits in transformers and is not served here, with the values that change nothing.
_UNSERVED: Final[dict[str, Any]] = {
    "repetition_penalty": 1.0,
    "encoder_repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "typical_p": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "top_h": None,
    "num_beams": 1,
    "guidance_scale": 1.0,
    "bad_words_ids": None,
    "sequence_bias": None,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "exponential_decay_length_penalty": None,
}


def default_sampling(target: Path) -> Sampling | None:
    """Only what the file says; None when that is greedy. Raises StartError naming the field."""
    file = target / "generation_config.json"
    config = _read(file)
    for name, neutral in _UNSERVED.items():
        if config.get(name) not in (None, neutral, []):
            raise StartError(
                f"{file}: {name} {config[name]!r} is not served; remove it or start without "
                "--use-generation-config"
            )
    sampling = Sampling(temperature=1.0 if config.get("do_sample") else 0.0)
    for name in _FIELDS if config.get("do_sample") else ():
        if (value := config.get(name)) is not None:
            _set(file, sampling, name, value)
    return None if is_greedy(sampling) else sampling


def _set(file: Path, sampling: Sampling, name: str, value: Any) -> None:
    try:
        if isinstance(value, bool):
            raise TypeError("is no number")
        setattr(sampling, name, value)
        check_sampling(sampling)
    except (TypeError, ValueError, BadRequest) as error:
        raise StartError(f"{file}: {name} {value!r}: {error}") from None


def _read(file: Path) -> dict[str, Any]:
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise StartError(f"--use-generation-config: {file}: {error}") from None
    if not isinstance(config, dict):
        raise StartError(f"{file}: must hold a JSON object")
    return config
