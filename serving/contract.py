"""What both sides of the wire agree on: the contract's version, drafting modes, long silences."""

from typing import Final, Literal

from domino_serve.v1 import speculation_pb2 as spec

CONTRACT_VERSION: Final = 1
QUIET_S: Final = 10.0  # a verify service with sessions at a draft says something at least so often
SILENT_S: Final = 30.0  # it is taken for dead where nothing else tells

ModeName = Literal["ar", "dflash", "domino", "dspark"]

MODES: Final[dict[ModeName, spec.Mode.ValueType]] = {
    "ar": spec.MODE_AR,
    "dflash": spec.MODE_DFLASH,
    "domino": spec.MODE_DOMINO,
    "dspark": spec.MODE_DSPARK,
}


def mode_name(mode: int) -> str:
    """Name of a wire mode for people; "unspecified" or "mode 7" when it is none of MODES."""
    if mode == spec.MODE_UNSPECIFIED:
        return "unspecified"
    return next((name for name, value in MODES.items() if value == mode), f"mode {mode}")
