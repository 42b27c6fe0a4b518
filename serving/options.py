"""A frozen dataclass in, its command line and config file out: each default exists once.

@dataclass(frozen=True, kw_only=True, slots=True)
class DraftConfig:
    port: int = field(0, help="TCP port; 0 takes a free one")

config = parse(DraftConfig, argv, prog="draft_service", description="...")
"""

import argparse
import dataclasses
import json
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar, get_type_hints

from serving.option_type import OptionError, OptionType

__all__ = ["OptionError", "Parser", "check_seconds", "field", "parse"]

MAX_S = 1e6  # of a duration: waiting primitives overflow far beyond it

T = TypeVar("T")


def field(default: Any = dataclasses.MISSING, *, help: str) -> Any:
    """A dataclass field with its help text; without a default it is required."""
    return dataclasses.field(default=default, metadata={"help": help})


def check_seconds(config: object, *names: str, or_zero: bool = False) -> None:
    """Raises OptionError unless each of these durations is above 0 (or 0) and at most MAX_S."""
    for name in names:
        value = getattr(config, name)
        if not (0 < value <= MAX_S or (or_zero and value == 0)):
            least = "at least 0" if or_zero else "above 0"
            raise OptionError(name, value, f"must be {least} and at most {MAX_S:g}")


def parse(cls: type[T], argv: Sequence[str] | None = None, *, prog: str, description: str) -> T:
    """Options from `--config FILE` and flags, flags winning; exits with code 2 on a bad one."""
    kinds = {name: OptionType.of(hint) for name, hint in get_type_hints(cls).items()}
    specs = dataclasses.fields(cls)  # type: ignore[arg-type]  # T is a dataclass
    parser = Parser(prog=prog, description=description, allow_abbrev=False)
    parser.add_argument("--config", type=Path, metavar="FILE", help="TOML or JSON file of options")
    for spec in specs:
        _add_flag(parser, spec, kinds[spec.name])
    flags = vars(parser.parse_args(argv))
    file: Path | None = flags.pop("config")
    try:
        values = (_read(file, kinds) if file else {}) | flags
        for spec in specs:
            if spec.default is dataclasses.MISSING and spec.name not in values:
                parser.error(f"option {spec.name} is required: give {_flag(spec.name)}")
        return cls(**values)
    except OptionError as error:
        parser.error(str(error))


class Parser(argparse.ArgumentParser):
    """One line per error; the usage of dozens of options would hide it."""

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message} (see --help)", file=sys.stderr)
        raise SystemExit(2)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _add_flag(
    parser: argparse.ArgumentParser, spec: "dataclasses.Field[Any]", kind: OptionType
) -> None:
    text = spec.metadata["help"].replace("%", "%%")
    if spec.default is dataclasses.MISSING:
        text += " (required)"
    elif spec.default is not None:
        text += f" (default: {spec.default})"
    how: dict[str, Any] = {"dest": spec.name, "help": text, "default": argparse.SUPPRESS}
    if kind.base is bool:
        how["action"] = argparse.BooleanOptionalAction
    else:
        how["type"] = kind.base
        how["choices"] = kind.choices or None
        how["metavar"] = None if kind.choices else kind.base.__name__.upper()
    parser.add_argument(_flag(spec.name), **how)


def _read(file: Path, kinds: dict[str, OptionType]) -> dict[str, Any]:
    try:
        text = file.read_text(encoding="utf-8")
        found = json.loads(text) if file.suffix == ".json" else tomllib.loads(text)
    except (OSError, ValueError) as error:
        raise OptionError("config", str(file), f"cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise OptionError("config", str(file), "must hold one table of options")
    for name, value in found.items():
        if name not in kinds:
            raise OptionError(name, value, f"is unknown in {file}; known: {', '.join(kinds)}")
    return {name: kinds[name].checked(name, value) for name, value in found.items()}
