"""What the Domino authors published for Qwen3.6-27B on two A100s, to lay ours beside it.

Acceptance lengths, which can be pretended (tokens per verify step, the bonus token included), and
macro speed-ups over plain decoding; b8 and b16 of DFlash and of Domino.
"""

from typing import Final

from domino_cli.errors import UsageError

PUBLISHED: Final = "published"
WORKLOADS: Final = ("gsm8k", "math500", "humaneval", "mbpp", "mt-bench", "alpaca")
# load -> arm -> lengths in the order of WORKLOADS
LENGTHS: Final = {
    "C1": {
        "dflash@8": (5.449, 5.700, 5.264, 4.972, 4.278, 4.176),
        "dflash@16": (6.878, 7.401, 6.469, 5.732, 4.947, 4.698),
        "domino@8": (6.335, 6.201, 5.655, 5.405, 4.758, 4.707),
        "domino@16": (9.163, 8.760, 7.445, 6.803, 5.851, 5.937),
    },
    "C8": {
        "dflash@8": (5.429, 5.663, 5.267, 4.954, 4.294, 4.146),
        "dflash@16": (6.796, 7.386, 6.440, 5.770, 4.967, 4.669),
        "domino@8": (6.309, 6.194, 5.659, 5.404, 4.749, 4.743),
        "domino@16": (9.310, 8.813, 7.418, 6.787, 5.908, 5.835),
    },
    "C32": {
        "dflash@8": (5.442, 5.697, 5.293, 4.942, 4.302, 4.171),
        "dflash@16": (6.873, 7.321, 6.466, 5.752, 4.983, 4.692),
        "domino@8": (6.288, 6.206, 5.677, 5.373, 4.768, 4.721),
        "domino@16": (9.313, 8.789, 7.449, 6.842, 5.923, 5.812),
    },
}
# load -> arm -> mean over six workloads of the speed-up over plain decoding
MACRO: Final = {
    "C1": {"dflash@8": 3.61, "dflash@16": 3.93, "domino@8": 3.94, "domino@16": 4.54},
    "C8": {"dflash@8": 2.98, "dflash@16": 2.59, "domino@8": 3.22, "domino@16": 2.98},
    "C32": {"dflash@8": 1.71, "dflash@16": 1.27, "domino@8": 1.84, "domino@16": 1.48},
}


def published_length(load: str, arm: str, workload: str) -> str:
    """As the verify service's option takes it; UsageError where nothing was published."""
    lengths = LENGTHS.get(load, {}).get(arm)
    if lengths is None or workload not in WORKLOADS:
        arms = ", ".join(LENGTHS["C1"])
        raise UsageError(
            f"synthetic_acceptance: nothing was published for {arm} at {load} on {workload}; "
            f"published are {arms} at {', '.join(LENGTHS)}"
        )
    return str(lengths[WORKLOADS.index(workload)])
