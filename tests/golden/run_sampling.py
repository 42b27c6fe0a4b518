"""Kind `sampling`: probabilities after temperature, top-k and top-p (f9)."""

from torch import Tensor

from tests.golden.fixture import Fixture
from verify_service.sampling import SamplingParams, warp


def run_sampling(fixture: Fixture) -> dict[str, Tensor]:
    """Warped probabilities of every parameter set over the same logits."""
    inputs, out = fixture.inputs, {}
    logits = inputs["warp.logits"]
    for name, recorded in inputs.items():
        if name.endswith(".params"):
            temperature, top_p, top_k = recorded.tolist()
            params = SamplingParams(temperature=temperature, top_p=top_p, top_k=int(top_k), seed=0)
            weights = warp(logits, [params] * len(logits))
            out[name.replace("params", "probs")] = weights / weights.sum(-1, keepdim=True)
    return out
