"""Entries of the metadata log in words."""

from __future__ import annotations

from typing import Any

import msgspec

from lockstep.metadata.entries import LogEntry
from lockstep.metadata.registry import EntryKind, Registry
from lockstep.values.errors import CannotApply

#: A summary is one line of a table.
_SUMMARY_CHARACTERS_MAX = 200


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
    text = _fields(change if change is not None else body)
    return text if len(text) <= _SUMMARY_CHARACTERS_MAX else text[: _SUMMARY_CHARACTERS_MAX - 1] + "…"


def _fields(value: msgspec.Struct) -> str:
    parts = []
    for name in value.__struct_fields__:
        field = getattr(value, name)
        if isinstance(field, tuple):
            if field:
                parts.append(f"{name}={len(field)}")
        elif field not in ("", None, False):
            parts.append(f"{name}={field}")
    return f"{type(value).__name__} {' '.join(parts)}"
