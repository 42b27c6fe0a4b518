"""hypothesis strategies for any message, from its descriptor: failures come out small."""

from collections.abc import Callable
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import strategies as st

DEPTH = 3

_RANGES = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}


def messages(descriptor: Descriptor, depth: int = DEPTH) -> st.SearchStrategy[Message]:
    """Every field absent or any value of its type."""
    kind: Callable[..., Message] = GetMessageClass(descriptor)
    fields = {
        field.name: _values(field, depth)
        for field in descriptor.fields
        if depth or not field.message_type
    }
    return st.fixed_dictionaries({}, optional=fields).map(lambda values: kind(**values))


def _values(field: FieldDescriptor, depth: int) -> st.SearchStrategy[Any]:
    one = _one(field, depth)
    return st.lists(one, max_size=4) if field.is_repeated else one


def _one(field: FieldDescriptor, depth: int) -> st.SearchStrategy[Any]:
    if field.message_type:
        return messages(field.message_type, depth - 1)
    if field.cpp_type in _RANGES:
        low, high = _RANGES[field.cpp_type]
        return st.integers(max(low, -3), 300) | st.integers(low, high)
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        return st.integers(-1, 9)
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return st.booleans()
    if field.cpp_type == FieldDescriptor.CPPTYPE_FLOAT:
        return st.floats(width=32)
    if field.cpp_type == FieldDescriptor.CPPTYPE_DOUBLE:
        return st.floats()
    if field.type == FieldDescriptor.TYPE_BYTES:
        return st.binary(max_size=512)
    return st.text(max_size=40)
