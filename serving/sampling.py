"""What sampling fields may say, the same at the front door and at the verify service."""

from collections.abc import Callable
from typing import Final

from domino_serve.v1.generate_pb2 import GenerateRequest
from domino_serve.v1.sampling_pb2 import Sampling
from serving.errors import BadRequest

# NaN fails every comparison and so every check.
_ALLOWED: Final[dict[str, tuple[Callable[[float], bool], str]]] = {
    "temperature": (lambda value: 0 <= value <= 100, "from 0 (greedy) to 100"),
    "top_k": (lambda value: value >= 0, "at least 0, which keeps all"),
    "top_p": (lambda value: 0 < value <= 1, "above 0 and at most 1"),
    "min_p": (lambda value: 0 <= value <= 1, "from 0 to 1"),
    "seed": (lambda value: value >= 0, "at least 0"),
}
FIELDS: Final = tuple(_ALLOWED)


def requested(request: GenerateRequest, default: Sampling) -> Sampling:
    """The request's fields, `default` where it has none, checked; raises BadRequest."""
    sampling = Sampling()
    sampling.CopyFrom(default)
    for name in FIELDS:
        if request.HasField(name):  # type: ignore[arg-type]
            setattr(sampling, name, getattr(request, name))
    check_sampling(sampling)
    return sampling


def is_greedy(sampling: Sampling) -> bool:
    """Whether only the most probable token is left; of equally probable ones the lowest id."""
    return sampling.temperature == 0 or sampling.top_k == 1


def check_sampling(sampling: Sampling, prefix: str = "") -> None:
    """Raises BadRequest naming the first field, after `prefix`, whose value is out of range."""
    for name in FIELDS:
        allowed, words = _ALLOWED[name]
        if sampling.HasField(name) and not allowed(getattr(sampling, name)):  # type: ignore[arg-type]
            raise BadRequest(prefix + name, f"{getattr(sampling, name)}; must be {words}")
