"""Typed look-ups in a config.json; every refusal names the file, the field and the value."""

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from serving.errors import CheckpointError

MAX_INTEGER = 2**31 - 1


class Fields:
    """A config object; with `nested`, a field is looked up there first and at top level second."""

    def __init__(
        self, source: Path, config: Mapping[str, Any], nested: str | None = None, prefix: str = ""
    ) -> None:
        self.source, self.top, self.prefix = source, config, prefix
        self.warnings: list[str] = []  # what was assumed; shown to the user, never fatal
        inner = config.get(nested) if nested else None
        self.inner: Mapping[str, Any] = {}
        if inner is not None:
            if not isinstance(inner, Mapping):
                raise self.refuse(str(nested), inner, "must be an object")
            self.inner = inner

    def object(self, field: str) -> Self | None:
        """The fields of a nested object; None when it is absent or null."""
        value = self.get(field)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.refuse(field, value, "must be an object")
        inner = type(self)(self.source, value, prefix=f"{self.prefix}{field}.")
        inner.warnings = self.warnings
        return inner

    def warn(self, field: str, text: str) -> None:
        """Notes that a field was read in a way the user should know of."""
        self.warnings.append(f"{self.prefix}{field} {text}")

    def refuse(self, field: str, value: Any, remedy: str) -> CheckpointError:
        """The error to raise for a bad value."""
        shown = "absent or null" if value is None else repr(value)
        return CheckpointError(f"{self.source}: {self.prefix}{field} is {shown}: {remedy}")

    def get(self, field: str) -> Any:
        """The value, or None when the field is absent or null; raises when two places differ."""
        inner, top = self.inner.get(field), self.top.get(field)
        if inner is not None and top is not None and inner != top:
            raise self.refuse(field, inner, f"the top level says {top!r}; make them equal")
        return top if inner is None else inner

    def integer(
        self, field: str, default: int | None = None, minimum: int = 1, maximum: int = MAX_INTEGER
    ) -> int:
        """A whole number of minimum to maximum; without a default the field is required."""
        value = self.get(field)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise self.refuse(field, value, f"must be a whole number of at least {minimum}")
        if value > maximum:
            raise self.refuse(field, value, f"must be at most {maximum}")
        return value

    def number(self, field: str, default: float | None = None) -> float:
        """A finite number above 0; without a default the field is required."""
        value = self.get(field)
        value = default if value is None else value
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not 0 < value < math.inf
        ):
            raise self.refuse(field, value, "must be a number above 0")
        return float(value)

    def boolean(self, field: str, default: bool | None = None) -> bool:
        """A genuine JSON boolean; without a default the field is required."""
        value = self.get(field)
        value = default if value is None else value
        if not isinstance(value, bool):
            raise self.refuse(field, value, "must be true or false")
        return value

    def choice(self, field: str, allowed: tuple[str, ...], default: str | None = None) -> str:
        """One of `allowed`."""
        value = self.get(field)
        value = default if value is None else value
        if value not in allowed:
            raise self.refuse(field, value, f"only {', '.join(allowed)} can be served")
        return str(value)

    def refuse_any(self, names: Iterable[str], remedy: str, harmless: tuple[Any, ...] = ()) -> None:
        """Raises for the first of `names` that is there with a value that is not harmless."""
        for name in names:
            value = self.get(name)
            if value is not None and not any(value is h or value == h for h in harmless):
                raise self.refuse(name, value, remedy)
