"""The types an option may have: bool, int, float, str, Path, Literal of str or int, each | None."""

import dataclasses
import types
from pathlib import Path
from typing import Any, Literal, Self, Union, get_args, get_origin

from serving.errors import StartError


class OptionError(StartError):
    """An option's value is impossible.

    Raised by `__post_init__` of config dataclasses, and later by whoever finds out at start.
    """

    def __init__(self, field: str, value: object, remedy: str) -> None:
        super().__init__(f"option {field}: {value!r} {remedy}")
        self.field, self.value, self.remedy = field, value, remedy


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class OptionType:
    """`base` is the Python type of a value, `choices` the values of a Literal."""

    base: type
    choices: tuple[Any, ...] = ()
    optional: bool = False

    @classmethod
    def of(cls, hint: Any) -> Self:
        optional = False
        if get_origin(hint) in (Union, types.UnionType):
            (hint,) = (arg for arg in get_args(hint) if arg is not types.NoneType)
            optional = True
        choices = get_args(hint) if get_origin(hint) is Literal else ()
        base = type(choices[0]) if choices else hint
        assert base in (bool, int, float, str, Path), f"no option can have the type {hint}"
        return cls(base=base, choices=choices, optional=optional)

    def checked(self, name: str, value: object) -> Any:
        """A config file's value as the option's type; OptionError when it has another."""
        if value is None and self.optional:
            return None
        if self.base is float and type(value) is int:
            return float(value)
        if self.base is Path and isinstance(value, str):
            return Path(value)
        if type(value) is not self.base:
            raise OptionError(name, value, f"must be of type {self.base.__name__}")
        if self.choices and value not in self.choices:
            raise OptionError(name, value, f"must be one of {', '.join(map(str, self.choices))}")
        return value
