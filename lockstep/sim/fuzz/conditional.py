"""Changes that are made if conditions hold, alone or together in a batch.

Invariant: all conditions are judged by what was visible before any of the changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lockstep.sim.fuzz.facts import Content, Seen
from lockstep.sim.fuzz.relations import condition_holds, keys_of
from lockstep.sim.fuzz.tables import Table, rank, star

if TYPE_CHECKING:
    from lockstep.sim.fuzz.changes import Change

#: Columns of a clustering; None where only static content is meant.
_At = tuple[Any, ...] | None


def judged(
    changes: Sequence[Change], content: Content, now_s: int, *, is_batch: bool
) -> tuple[tuple[Any, ...], ...] | None:
    """None when all conditions hold; else what is told of the rows."""
    asked = [change for change in changes if change.is_conditional]
    if all(_holds(change, content, now_s) for change in asked):
        return None
    return _told(changes, content, now_s, is_batch=is_batch)


def _place(change: Change, content: Content) -> tuple[tuple[Any, ...], _At]:
    table = content.table
    clustering = table.of("clustering")
    ranged = [r for r in change.where if table.column(r.columns[0]).role == "clustering"]
    key = keys_of(table.of("partition"), change.where)[0]
    return key, keys_of(clustering, ranged)[0] if ranged or not clustering else None


def _seen(change: Change, content: Content, now_s: int) -> tuple[Seen | None, Seen]:
    """The row that a change is about, where there is one, and the static row."""
    key, at = _place(change, content)
    static = content.static(content.partition(key), now_s)
    if at is None:
        return static if static.live else None, static
    return content.find(key, at, now_s), static


def _holds(change: Change, content: Content, now_s: int) -> bool:
    seen, static = _seen(change, content, now_s)
    if change.exists:
        return (seen is None) is (change.exists == "NOT")
    values = {**static.values, **(seen.values if seen else {})}
    return all(condition_holds(content.table, relation, values) for relation in change.conditions)


def _told(
    changes: Sequence[Change], content: Content, now_s: int, *, is_batch: bool
) -> tuple[tuple[Any, ...], ...]:
    """What is told of rows whose conditions did not hold: of each that is there the columns compared, or all
    of them where it was asked whether a row exists."""
    table = content.table
    names = [name for change in changes for name in _compared(change, table)]
    if is_batch:
        names = [column.name for column in table.of("partition", "clustering")] + names
    if any(change.exists for change in changes):
        names = star(table)
    rows = _rows(changes, content, now_s)
    return tuple(tuple(row.get(name) for name in dict.fromkeys(names)) for row in rows) or ((),)


def _compared(change: Change, table: Table) -> list[str]:
    """Names of columns that are compared: static ones are told last."""
    names = [relation.columns[0] for relation in change.conditions]
    return sorted(names, key=lambda name: table.column(name).role == "static")


def _rows(changes: Sequence[Change], content: Content, now_s: int) -> list[dict[str, Any]]:
    """Values of the rows that are asked about, in their order; without any the static ones alone. Who asks
    only about these sees the first row of the partition. Static columns show where any is written or they
    are compared, regular ones where rows are written."""
    table = content.table
    clustering = table.of("clustering")
    asked = [change for change in changes if change.is_conditional]
    key, _ = _place(asked[0], content)
    facts = content.partition(key)
    known = _known(changes, table)
    static = {name: value for name, value in content.static(facts, now_s).values.items() if name in known}
    fixed = dict(zip((c.name for c in table.of("partition")), key, strict=True)) | static
    there = content.rows(facts, now_s)
    named = [at for _, at in (_place(change, content) for change in asked) if at is not None]
    named_ranks = [rank(clustering, at) for at in named]
    if named:
        there = [pair for pair in there if rank(clustering, pair[0]) in named_ranks]
    names = [column.name for column in clustering]
    found = [
        fixed
        | dict(zip(names, at, strict=True))
        | {name: value for name, value in seen.values.items() if name in known}
        for at, seen in (there if named else there[:1])
    ]
    return found or ([fixed] if any(value is not None for value in static.values()) else [])


def _known(changes: Sequence[Change], table: Table) -> set[str]:
    known = {relation.columns[0] for change in changes for relation in change.conditions}
    if any(table.column(part.column).role == "static" for change in changes for part in change.assignments):
        known |= {column.name for column in table.of("static")}
    keys = {column.name for column in table.of("clustering")}
    if not keys or any(relation.columns[0] in keys for change in changes for relation in change.where):
        known |= {column.name for column in table.of("regular")}
    return known
