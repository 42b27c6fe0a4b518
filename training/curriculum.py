"""The base-anchored curriculum: the base branch's share of the loss, by optimizer step.

A pure function of the steps completed: micro-batches of one step and a resumed run agree.
"""


def base_share(
    step: int,
    total_steps: int,
    *,
    start: float = 1.0,
    ratio: float = 1.0,
    steps: int | None = None,
) -> float:
    """lambda: linear from `start` at step 0 to 0.

    It reaches 0 after `steps` steps, where 0 means at once; None: after `ratio` of the total.
    """
    if steps == 0:
        return 0.0
    horizon = max(1, int(total_steps * ratio)) if steps is None else steps
    return min(max(start * (1 - min(step / horizon, 1.0)), 0.0), 1.0)
