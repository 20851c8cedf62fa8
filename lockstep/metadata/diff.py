"""What differs between two metadata values, for people and for `metadata diff`.

Invariant: equal values give no lines, and lines come in the order of the fields.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.extensions import Extensions
from lockstep.metadata.roles import Access
from lockstep.schema.model import Replication, Schema, Table
from lockstep.values.hash_tree import changed
from lockstep.values.tokens import Range

ABSENT = "-"
#: The first of these attributes that an element has names it in a path.
_NAMES = ("id", "name", "replication", "range", "operation_id", "node")
_SKIPPED = ("recent_ids",)
#: Fields that say nothing but whether there is a value.
_SECRET = ("salted_hash",)


class Difference(msgspec.Struct, frozen=True, array_like=True):
    """`before` or `after` is `-` where the thing was not there."""

    path: str
    before: str
    after: str


def diff(before: ClusterMetadata, after: ClusterMetadata) -> tuple[Difference, ...]:
    """Differences of every field but the kept entry ids, which the epoch already tells."""
    return tuple(
        difference
        for name in before.__struct_fields__
        if name not in _SKIPPED
        for difference in _compare(name, getattr(before, name), getattr(after, name))
    )


def _compare(path: str, before: Any, after: Any) -> Iterator[Difference]:
    if before is after or before == after:
        return
    if isinstance(before, Schema) and isinstance(after, Schema):
        yield from _compare_schemas(path, before, after)
    elif isinstance(before, Extensions) and isinstance(after, Extensions):
        yield from _compare_extensions(path, before, after)
    elif isinstance(before, Access) and isinstance(after, Access):
        yield from _compare_access(path, before, after)
    elif isinstance(before, msgspec.Struct) and type(before) is type(after) and _name(before) == _name(after):
        for field in before.__struct_fields__:
            values = getattr(before, field), getattr(after, field)
            if field in _SECRET and values[0] != values[1]:
                yield Difference(f"{path}.{field}", _masked(values[0]), "another one" if values[1] else "")
                continue
            yield from _compare(f"{path}.{field}", *values)
    elif _are_things(before) and _are_things(after):
        yield from _compare_things(path, before, after)
    else:
        yield Difference(path, text_of(before), text_of(after))


def _compare_schemas(path: str, before: Schema, after: Schema) -> Iterator[Difference]:
    """Keyspaces first, without their tables, then tables by keyspace and id; costs what changed."""
    heads = [
        (old.head if old is not None else None, new.head if new is not None else None)
        for _, old, new in changed(before.keyspace_tree, after.keyspace_tree)
    ]
    heads.sort(key=lambda pair: next(head.name for head in pair if head is not None))
    yield from _compare_things(f"{path}.keyspaces", *_sides(heads))
    tables: dict[str, list[tuple[Table | None, Table | None]]] = {}
    for _, was, now in changed(before.table_tree, after.table_tree):
        for keyspace in sorted({table.keyspace for table in (was, now) if table is not None}):
            tables.setdefault(keyspace, []).append((was, now))
    for keyspace in sorted(tables):
        yield from _compare_things(f"{path}.keyspaces[{keyspace}].tables", *_sides(tables[keyspace]))
    yield from _compare(f"{path}.next_table_id", before.next_table_id, after.next_table_id)


def _sides(pairs: Sequence[tuple[Any, Any]]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """What there was and what there is."""
    return tuple(old for old, _ in pairs if old is not None), tuple(
        new for _, new in pairs if new is not None
    )


def _compare_extensions(path: str, before: Extensions, after: Extensions) -> Iterator[Difference]:
    for name in sorted({*before, *after}):
        old, new = before.get(name), after.get(name)
        if old != new:
            old_text, new_text = (ABSENT if value is None else text_of(value) for value in (old, new))
            yield Difference(f"{path}[{name}]", old_text, new_text)


def _compare_access(path: str, before: Access, after: Access) -> Iterator[Difference]:
    roles = [(old, new) for _, old, new in changed(before.roles, after.roles)]
    roles.sort(key=lambda pair: next(role.name for role in pair if role is not None))
    yield from _compare_things(f"{path}.roles", *_sides(roles))
    grants = [(old, new) for _, old, new in changed(before.grants, after.grants)]
    named = [(next((g.role, g.resource) for g in pair if g is not None), pair) for pair in grants]
    for (role, resource), pair in sorted(named):
        texts = (ABSENT if grant is None else text_of(grant.permissions) for grant in pair)
        yield Difference(f"{path}.grants[{role} on {resource}]", *texts)


def _are_things(value: Any) -> bool:
    """A sequence whose elements have names, so that they can be matched by name and not by place."""
    return isinstance(value, tuple) and all(_name(element) for element in value)


def _compare_things(path: str, before: tuple[Any, ...], after: tuple[Any, ...]) -> Iterator[Difference]:
    old = {_name(element): element for element in before}
    new = {_name(element): element for element in after}
    for name in [*old, *(name for name in new if name not in old)]:
        here = f"{path}[{name}]"
        if name not in new:
            yield Difference(here, text_of(old[name]), ABSENT)
        elif name not in old:
            yield Difference(here, ABSENT, text_of(new[name]))
        else:
            yield from _compare(here, old[name], new[name])


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
        return f"{value.text()} (of operation {value.apart})" if value.apart else value.text()
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
