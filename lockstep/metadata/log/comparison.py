"""What differs between two values, in lines for people.

Invariant: equal values give no lines, and lines come in the order of the fields.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from lockstep.schema.model import Replication
from lockstep.values.tokens import Range

ABSENT = "-"
#: The first of these attributes that an element has names it in a path.
_NAMES = ("id", "name", "range", "operation_id", "node")
#: Fields that say nothing but whether there is a value.
_SECRET = ("salted_hash",)


class Difference(msgspec.Struct, frozen=True, array_like=True):
    """`before` or `after` is `-` where the thing was not there."""

    path: str
    before: str
    after: str


def compare(path: str, before: Any, after: Any) -> Iterator[Difference]:
    """Field by field; elements of a tuple are matched by name where they have one."""
    if before is after or before == after:
        return
    if isinstance(before, msgspec.Struct) and type(before) is type(after) and _name(before) == _name(after):
        for field in before.__struct_fields__:
            values = getattr(before, field), getattr(after, field)
            if field in _SECRET and values[0] != values[1]:
                yield Difference(f"{path}.{field}", _masked(values[0]), "another one" if values[1] else "")
                continue
            yield from compare(f"{path}.{field}", *values)
    elif _are_things(before) and _are_things(after):
        yield from compare_things(path, before, after)
    else:
        yield Difference(path, text_of(before), text_of(after))


def compare_things(path: str, before: tuple[Any, ...], after: tuple[Any, ...]) -> Iterator[Difference]:
    """Elements that have names, by name."""
    old = {_name(element): element for element in before}
    new = {_name(element): element for element in after}
    for name in [*old, *(name for name in new if name not in old)]:
        here = f"{path}[{name}]"
        if name not in new:
            yield Difference(here, text_of(old[name]), ABSENT)
        elif name not in old:
            yield Difference(here, ABSENT, text_of(new[name]))
        else:
            yield from compare(here, old[name], new[name])


def sides(pairs: Sequence[tuple[Any, Any]]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """(what there was, what there is) of pairs in which None stands for what is not there."""
    was = tuple(old for old, _ in pairs if old is not None)
    return was, tuple(new for _, new in pairs if new is not None)


def _are_things(value: Any) -> bool:
    """A sequence whose elements have names, so that they can be matched by name and not by place."""
    return isinstance(value, tuple) and all(_name(element) for element in value)


def _name(element: Any) -> str:
    if not isinstance(element, msgspec.Struct) or isinstance(element, Range):
        return ""
    for attribute in _NAMES:
        if attribute in element.__struct_fields__:
            return text_of(getattr(element, attribute))
    return ""


def text_of(value: Any) -> str:
    """Short text of any part of the metadata."""
    if isinstance(value, Range):
        return f"({value.left}, {value.right}]"
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, enum.Enum):
        return str(value.value)
    if isinstance(value, Replication):
        return value.text()
    if isinstance(value, msgspec.Struct):
        inside = (f"{field}={_field_text(value, field)}" for field in value.__struct_fields__)
        return f"{type(value).__name__}({', '.join(inside)})"
    if isinstance(value, tuple):
        return f"[{', '.join(text_of(element) for element in value)}]"
    return str(value)


def _field_text(value: msgspec.Struct, field: str) -> str:
    found = getattr(value, field)
    return _masked(found) if field in _SECRET else text_of(found)


def _masked(secret: str) -> str:
    return "***" if secret else ""
