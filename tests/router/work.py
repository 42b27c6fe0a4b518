"""A request that was admitted, for tests of what comes behind admission."""

from domino_serve.v1 import speculation_pb2 as spec
from router.admission import Work


def work(*, mode: spec.Mode.ValueType = spec.MODE_AR, draft_tokens: int = 0) -> Work:
    """Greedy, of one prompt id, for three tokens at most."""
    return Work(
        request_id="mine",
        prompt_ids=[9],
        max_tokens=3,
        min_tokens=0,
        stop_token_ids=frozenset(),
        stop=(),
        sampling=None,
        mode=mode,
        draft_tokens=draft_tokens,
    )
