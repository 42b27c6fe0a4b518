"""Messages nobody would send: made from nothing, or valid ones with something spoiled."""

import math
import random
from typing import Any, Final, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

M = TypeVar("M", bound=Message)

_INT_TYPES: Final = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}
_NEAR: Final = (0, 1, 2, 3, 7, 8, 9, 63, 64, 255, 256, 257, 511, 512, 513)
_FLOATS: Final = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-300, 1e300, math.inf, -math.inf, math.nan)
_TEXTS: Final = (
    *("", " ", "x", "none", "127.0.0.1:1", "127.0.0.1:99999", "[::1]:1", "host", ":0", "/", ".."),
    *("\x00", "a\x00b", "\n", "\N{REPLACEMENT CHARACTER}", "\U0001f600", "%s%n", "x" * 300),
    *("unix:/nowhere", "dns:///", "a,b", "../../etc", "x" * 5000),
)
MANY: Final = 300


class Fuzzer:
    """A stream of messages, the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def spoiled(self, valid: M) -> M:
        """A copy with one to three fields changed, dropped or doubled, or with broken bytes."""
        made = type(valid)()
        made.CopyFrom(valid)
        if self.rng.random() < 0.1:
            return self._broken_bytes(made)
        for _ in range(self.rng.choice((1, 1, 1, 2, 3))):
            self._change(made)
        return made

    def invented(self, kind: type[M], depth: int = 3) -> M:
        """Each field set or not, by values at and beyond every edge."""
        made = kind()
        for field in made.DESCRIPTOR.fields:
            if self.rng.random() < 0.5 and depth:
                self._set(made, field, depth)
        return made

    def _change(self, message: Message) -> None:
        if not message.DESCRIPTOR.fields:
            return
        field: Any = self.rng.choice(message.DESCRIPTOR.fields)
        within = _submessages(message, field)
        if within and self.rng.random() < 0.8:
            self._change(self.rng.choice(within))
        elif self.rng.random() < 0.15:
            message.ClearField(field.name)
        else:
            self._set(message, field, depth=3)

    def _set(self, message: Message, field: Any, depth: int) -> None:
        if field.is_repeated:
            values = getattr(message, field.name)
            if self.rng.random() < 0.5:
                message.ClearField(field.name)
            count = self.rng.choice((0, 1, 1, 2, 3, 5, MANY if depth == 3 else 5))
            for _ in range(count):
                if field.message_type:
                    values.add().CopyFrom(self.invented(_kind(values), depth - 1))
                else:
                    values.append(self._scalar(field))
        elif field.message_type:
            part = getattr(message, field.name)
            part.CopyFrom(self.invented(type(part), depth - 1))
        else:
            setattr(message, field.name, self._scalar(field))

    def _scalar(self, field: Any) -> Any:
        kind = field.cpp_type
        if kind in _INT_TYPES:
            low, high = _INT_TYPES[kind]
            near = self.rng.choice(_NEAR) * self.rng.choice((1, 1, 1, -1))
            value = self.rng.choice((near, near, near, low, high, self.rng.randint(low, high)))
            return min(max(value, low), high)
        if kind == FieldDescriptor.CPPTYPE_ENUM:
            return self.rng.choice((*(v.number for v in field.enum_type.values), -1, 99, 2**31 - 1))
        if kind == FieldDescriptor.CPPTYPE_BOOL:
            return self.rng.random() < 0.5
        if kind in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
            return self.rng.choice((*_FLOATS, self.rng.uniform(-2, 2)))
        if field.type == FieldDescriptor.TYPE_BYTES:
            return self.rng.randbytes(self.rng.choice((0, 1, 3, 4, 255, 256, 4096)))
        return self.rng.choice(_TEXTS)

    def _broken_bytes(self, valid: M) -> M:
        """Bytes changed at random, where they are still a message; text may be no text."""
        data = bytearray(valid.SerializeToString())
        for _ in range(self.rng.choice((1, 2, 8))):
            if data:
                data[self.rng.randrange(len(data))] = self.rng.randrange(256)
        made = type(valid)()
        try:
            made.ParseFromString(bytes(data))
        except DecodeError:
            return valid  # serving.malformed refuses those; tests/serving has them
        return made


def _submessages(message: Message, field: Any) -> list[Message]:
    if not field.message_type:
        return []
    value = getattr(message, field.name)
    if field.is_repeated:
        return list(value)
    return [value] if message.HasField(field.name) else []


def _kind(values: Any) -> type[Message]:
    """Class of a repeated field's messages."""
    made = values.add()
    values.remove(made)
    return type(made)
