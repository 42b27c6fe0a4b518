"""The arms that `bench serve` compares, by name: a mode and the width it verifies."""

import argparse
from dataclasses import dataclass

from domino_cli.stack_arguments import MODES, positive
from serving.contract import ModeName

TITLES: dict[ModeName, str] = {"ar": "AR", "dflash": "DFlash", "domino": "Domino"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Arm:
    """width: positions verified a step, the current token included; None is the draft's block."""

    mode: ModeName
    width: int | None = None

    @property
    def name(self) -> str:
        return self.mode if self.width is None else f"{self.mode}@{self.width}"

    @property
    def title(self) -> str:
        """As the published tables call it: b8 verifies 8 positions."""
        return TITLES[self.mode] if self.width is None else f"{TITLES[self.mode]} b{self.width}"

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
            return Arm(mode=mode, width=positive(width) if at else None)
    known = "ar, dflash, domino, each but ar with @WIDTH"
    raise argparse.ArgumentTypeError(f"arm {text!r} is unknown; known: {known}")
