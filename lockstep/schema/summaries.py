"""What a change of the schema comes to, and what lies between two schemas, as drivers are told it: for a node
that jumped over the entries between them.

Invariant: a change that finds nothing to do has no summary. Equal schemas give nothing; what a dropped
keyspace held is not told again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from lockstep.schema.log_tables import SUFFIX
from lockstep.schema.model import Keyspace, Schema
from lockstep.schema.objects import Aggregate, Function
from lockstep.schema.types import CqlType
from lockstep.schema.user_types import type_in
from lockstep.values.errors import InvalidRequest, Rejected

CREATED, UPDATED, DROPPED = "CREATED", "UPDATED", "DROPPED"
#: Clients are not told of this one.
EMPTIED: Final = "EMPTIED"


class ChangeSummary(msgspec.Struct, frozen=True, array_like=True):
    """What drivers are told. `change`: CREATED, UPDATED, DROPPED (or EMPTIED, which they are not told);
    `target`: KEYSPACE, TABLE, TYPE, FUNCTION or AGGREGATE. `arguments`: types of a function's."""

    change: str
    target: str
    keyspace: str
    name: str = ""
    arguments: tuple[str, ...] = ()


Applied = tuple[Schema, ChangeSummary | None]


def declared_type(space: Keyspace, text: str) -> CqlType:
    """The type that a declaration names in a keyspace. Raises Rejected."""
    try:
        return type_in(space, text)
    except InvalidRequest as error:
        raise Rejected(error.message) from error


def no_keyspace(name: str) -> Rejected:
    return Rejected(f"Keyspace '{name}' doesn't exist", keyspace=name)


def changed_views(found: ChangeSummary, before: Schema, after: Schema) -> Iterator[ChangeSummary]:
    """What drivers are told of views, and of the log of changes, that followed a change of their table."""
    table = after.table(found.keyspace, found.name) if found.target == "TABLE" else None
    for name in table.views if table is not None and found.change == UPDATED else ():
        if before.table(found.keyspace, name) is not after.table(found.keyspace, name):
            yield ChangeSummary(UPDATED, "TABLE", found.keyspace, name)
    if found.target == "TABLE":
        log = found.name + SUFFIX
        was, now = before.table(found.keyspace, log), after.table(found.keyspace, log)
        if was is not now:
            change = CREATED if was is None else UPDATED if now is not None else DROPPED
            yield ChangeSummary(change, "TABLE", found.keyspace, log)


def summaries_between(before: Schema, after: Schema) -> list[ChangeSummary]:
    """What was dropped, created and changed; of a keyspace before its types, of those before its tables."""
    found: list[ChangeSummary] = []
    for name in sorted({*before.by_name, *after.by_name}):
        old, new = before.by_name.get(name), after.by_name.get(name)
        if old is new:
            continue
        if new is None:
            found.append(ChangeSummary(DROPPED, "KEYSPACE", name))
            continue
        if old is None or _settings(old) != _settings(new):
            found.append(ChangeSummary(CREATED if old is None else UPDATED, "KEYSPACE", name))
        found.extend(_named("TYPE", name, old.types_by_name if old is not None else {}, new.types_by_name))
        found.extend(_signed("FUNCTION", name, old.functions if old is not None else (), new.functions))
        found.extend(_signed("AGGREGATE", name, old.aggregates if old is not None else (), new.aggregates))
        found.extend(_named("TABLE", name, old.by_name if old is not None else {}, new.by_name))
    assert len(set(found)) == len(found), "drivers are told of each thing once"
    return found


def _signed(
    target: str, keyspace: str, old: Sequence[Function | Aggregate], new: Sequence[Function | Aggregate]
) -> Iterator[ChangeSummary]:
    before, after = ({one.signature: one for one in listed} for listed in (old, new))
    for name, arguments in sorted({*before, *after}):
        was, now = before.get((name, arguments)), after.get((name, arguments))
        if was != now:
            change = CREATED if was is None else DROPPED if now is None else UPDATED
            yield ChangeSummary(change, target, keyspace, name, arguments)


def _settings(keyspace: Keyspace) -> tuple[Any, ...]:
    return keyspace.replication, keyspace.durable_writes, keyspace.tablets, keyspace.tracked


def _named(
    target: str, keyspace: str, old: Mapping[str, Any], new: Mapping[str, Any]
) -> Iterator[ChangeSummary]:
    for name in sorted({*old, *new}):
        before, after = old.get(name), new.get(name)
        if before is after or before == after:
            continue
        change = CREATED if before is None else DROPPED if after is None else UPDATED
        yield ChangeSummary(change, target, keyspace, name)
