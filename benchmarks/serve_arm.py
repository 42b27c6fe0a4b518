"""The arms that `bench serve` compares, by name: a mode and the width it verifies."""

import argparse
from dataclasses import dataclass
from typing import Final

from domino_cli.argument_types import positive
from domino_cli.stack_arguments import MODES
from serving.contract import ModeName

AUTO: Final = "auto"
TITLES: dict[ModeName, str] = {
    **{"ar": "AR", "dflash": "DFlash"},
    **{"domino": "Domino", "dspark": "DSpark"},
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Arm:
    """width: positions verified a step, the current token included; None is the draft's block.

    auto: each step is as wide as pays.
    """

    mode: ModeName
    width: int | None = None
    auto: bool = False

    @property
    def name(self) -> str:
        if self.auto:
            return f"{self.mode}@{AUTO}"
        return self.mode if self.width is None else f"{self.mode}@{self.width}"

    @property
    def title(self) -> str:
        """As the published tables call it: b8 verifies 8 positions."""
        title = TITLES[self.mode]
        return f"{title} auto" if self.auto else f"{title} b{self.width}" if self.width else title

    @property
    def width_policy(self) -> str | None:
        """For the verify service; None leaves it to the service."""
        return AUTO if self.auto else "fixed" if self.width else None

    @property
    def is_plain(self) -> bool:
        return self.mode == "ar"


def arms(text: str) -> tuple[Arm, ...]:
    """argparse type: "ar,dflash@8,domino"; ar is put first, since all is compared with it."""
    found = dict.fromkeys(arm(part) for part in text.split(","))
    return tuple(sorted(found, key=lambda one: not one.is_plain))


def arm(text: str) -> Arm:
    name, at, width = text.partition("@")
    for mode in MODES:
        if name == mode and not (at and mode == "ar"):
            if width == AUTO:
                return Arm(mode=mode, auto=True)
            return Arm(mode=mode, width=positive(width) if at else None)
    known = "ar, dflash, domino, dspark, each but ar with @WIDTH or @auto"
    raise argparse.ArgumentTypeError(f"arm {text!r} is unknown; known: {known}")
