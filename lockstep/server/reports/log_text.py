"""Entries of the metadata log in words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import msgspec

from lockstep.metadata.log.entries import LogEntry
from lockstep.metadata.log.registry import EntryKind, Registry
from lockstep.metadata.operations import Body
from lockstep.schema.model import Replication
from lockstep.values.errors import CannotApply

#: A summary is one line of a table.
_SUMMARY_CHARACTERS_MAX = 200
#: Names shown of a list; a table may have hundreds of columns.
_NAMES_SHOWN_MAX = 4


def kind_name(kind: int) -> str:
    """`schema_change`, or `kind 99` for one that this version does not know."""
    try:
        return EntryKind(kind).name.lower()
    except ValueError:
        return f"kind {kind}"


def entry_summary(registry: Registry, entry: LogEntry) -> str:
    """What an entry does, in one line."""
    try:
        body: Any = registry.decode(entry.kind, entry.body)
    except CannotApply as error:
        return error.message
    change = getattr(body, "change", None)
    text = _fields(change if isinstance(change, msgspec.Struct) else body)
    return text if len(text) <= _SUMMARY_CHARACTERS_MAX else text[: _SUMMARY_CHARACTERS_MAX - 1] + "…"


def _fields(value: msgspec.Struct) -> str:
    return f"{type(value).__name__} {' '.join(_texts(value))}"


def _texts(value: msgspec.Struct) -> Iterator[str]:
    """Fields that say something; those of the body of a kind of operation stand among the others."""
    for name in value.__struct_fields__:
        field = getattr(value, name)
        if isinstance(field, Body):
            yield f"kind={field.about.kind}"
            yield from _texts(cast(msgspec.Struct, field))
            continue
        if name == "salted_hash":
            yield from ["password"] if field else []
            continue
        if isinstance(field, tuple):
            if field:
                yield f"{name}={_elements(field)}"
        elif isinstance(field, bytes):
            if field:
                yield f"{name}={_bytes(field)}"
        elif isinstance(field, Replication):
            yield f"{name}={field.text()}"
        elif field not in ("", None, False):
            yield f"{name}={field}"


def _elements(elements: tuple[Any, ...]) -> str:
    """`(c, w)` for elements that have names, `(class: SimpleStrategy)` for pairs, `(1, 2)`
    for ids, `3 items` for others."""
    texts = [_name(element) for element in elements[:_NAMES_SHOWN_MAX]]
    if "" in texts:
        return "1 item" if len(elements) == 1 else f"{len(elements)} items"
    more = len(elements) - _NAMES_SHOWN_MAX
    return f"({', '.join(texts)}{f', {more} more' if more > 0 else ''})"


def _name(element: Any) -> str:
    if isinstance(element, str | int):
        return str(element)
    if isinstance(element, tuple) and len(element) == 2:
        return f"{element[0]}: {element[1]}" if all(isinstance(part, str | int) for part in element) else ""
    named = getattr(element, "name", "")
    return named if isinstance(named, str) else ""


def _bytes(data: bytes) -> str:
    """The beginning in hexadecimal: enough to compare by eye."""
    return data[:8].hex() + ("…" if len(data) > 8 else "")
