"""Typed look-ups in a config.json; every refusal names the file, the field and the value."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from serving.checkpoint import CheckpointError


class Fields:
    """A config object; with `nested`, a field is looked up there first and at top level second."""

    def __init__(self, source: Path, config: Mapping[str, Any], nested: str | None = None) -> None:
        self.source = source
        self.top = config
        self.inner: Mapping[str, Any] = (config.get(nested) or {}) if nested else {}
        if not isinstance(self.inner, Mapping):
            raise self.refuse(str(nested), self.inner, "must be an object")

    @classmethod
    def from_file(cls, source: Path) -> "Fields":
        """Fields of a JSON file."""
        try:
            return cls(source, json.loads(source.read_text()))
        except json.JSONDecodeError as error:
            raise CheckpointError(f"{source}: not valid JSON ({error})") from None

    def refuse(self, field: str, value: Any, remedy: str) -> CheckpointError:
        """The error to raise for a bad value."""
        return CheckpointError(f"{self.source}: {field} is {value!r}: {remedy}")

    def get(self, field: str) -> Any:
        """The value, or None when the field is absent or null."""
        value = self.inner.get(field)
        return self.top.get(field) if value is None else value

    def integer(self, field: str, default: int | None = None, minimum: int = 1) -> int:
        """A whole number of at least `minimum`; without a default the field is required."""
        value = self.get(field)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise self.refuse(field, value, f"must be a whole number of at least {minimum}")
        return value

    def number(self, field: str, default: float | None = None) -> float:
        """A number above 0; without a default the field is required."""
        value = self.get(field)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
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

    def rope_theta(self) -> float:
        """Base of the rotary embedding, from rope_theta or transformers 5's rope_parameters."""
        parameters = self.get("rope_parameters") or {}
        scaling = self.get("rope_scaling") or {}
        for name, options in (("rope_parameters", parameters), ("rope_scaling", scaling)):
            kind = options.get("rope_type", options.get("type", "default"))
            if kind != "default":
                raise self.refuse(f"{name}.rope_type", kind, "only default can be served")
        if "rope_theta" in parameters:
            return Fields(self.source, parameters).number("rope_theta")
        return self.number("rope_theta")
