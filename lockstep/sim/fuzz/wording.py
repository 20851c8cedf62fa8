"""Changes as text.

Invariant: `say` is asked for every value of a statement once, in the order in which they stand there.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from lockstep.cql.wire.messages import UNSET
from lockstep.sim.fuzz import kinds
from lockstep.sim.fuzz.binding import BESIDE, BIGINT, INT, TEXT, Say
from lockstep.sim.fuzz.relations import where_text
from lockstep.sim.fuzz.tables import Table

if TYPE_CHECKING:
    from lockstep.sim.fuzz.changes import Assignment, Batch, Change


def text_of(change: Change, table: Table, say: Say) -> str:
    return _TEXTS[change.verb](change, table, say)


def batch_text(batch: Batch, table: Table, say: Say) -> str:
    sort = sort_of(batch, table)
    beside = batch.stamp is None or batch.way & BESIDE
    using = "" if beside else f" USING TIMESTAMP {say(BIGINT, batch.stamp)}"
    changes = "; ".join(change.text(table, say) for change in batch.changes)
    return f"BEGIN {sort}{' ' if sort else ''}BATCH{using} {changes}; APPLY BATCH"


def sort_of(batch: Batch, table: Table) -> str:
    return "COUNTER" if table.counters else "" if batch.logged else "UNLOGGED"


def _using(change: Change, say: Say) -> str:
    beside = change.stamp is None or change.way & BESIDE
    parts = [] if beside else [f"TIMESTAMP {say(BIGINT, change.stamp)}"]
    parts += [] if change.ttl_s is None else [f"TTL {say(INT, change.ttl_s)}"]
    return f" USING {' AND '.join(parts)}" if parts else ""


def _given(change: Change) -> list[tuple[str, Any]]:
    pairs = [(relation.columns[0], relation.value) for relation in change.where]
    return pairs + [(part.column, part.value) for part in change.assignments]


def _insert_text(change: Change, table: Table, say: Say) -> str:
    given = _given(change)
    absent = " IF NOT EXISTS" if change.exists else ""
    if change.as_json:
        row = {name: kinds.plain_json(table.column(name).kind, value) for name, value in given}
        said = say(TEXT, json.dumps(row))
        return f"INSERT INTO {table.path} JSON {said} DEFAULT {change.as_json}{absent}{_using(change, say)}"
    names = ", ".join(name for name, _ in given)
    values = ", ".join(say(table.column(name).kind, value) for name, value in given)
    return f"INSERT INTO {table.path} ({names}) VALUES ({values}){absent}{_using(change, say)}"


def _update_text(change: Change, table: Table, say: Say) -> str:
    using = _using(change, say)
    sets = ", ".join(_assignment_text(part, table, say) for part in change.assignments)
    where = where_text(table, change.where, say)
    return f"UPDATE {table.path}{using} SET {sets}{where}{_if_text(change, table, say)}"


def _delete_text(change: Change, table: Table, say: Say) -> str:
    what = ", ".join(_dropped(part, table, say) for part in change.assignments)
    head = f"DELETE {what}{' ' if what else ''}FROM {table.path}{_using(change, say)}"
    return f"{head}{where_text(table, change.where, say)}{_if_text(change, table, say)}"


_TEXTS: Final = {"INSERT": _insert_text, "UPDATE": _update_text, "DELETE": _delete_text}


def _if_text(change: Change, table: Table, say: Say) -> str:
    if change.exists:
        return " IF EXISTS"
    return " IF " + " AND ".join(c.text(table, say) for c in change.conditions) if change.conditions else ""


def _assignment_text(part: Assignment, table: Table, say: Say) -> str:
    kind = table.column(part.column).kind
    name = part.column
    if part.how == "put":
        place = _place(name, kind, part.key, say)
        return f"{place} = {say(_part(kind, part.key), part.value)}"
    if part.how == "count":
        falls = part.value is not UNSET and part.value < 0
        amount = -part.value if falls else part.value
        return f"{name} = {name} {'-' if falls else '+'} {say(BIGINT, amount)}"
    if part.how == "set":
        return f"{name} = {say(kind, part.value)}"
    if part.how == "prepend":
        return f"{name} = {say(kind, part.value)} + {name}"
    of = kinds.Kind("set", kind.parts[:1]) if part.how == "remove" and kind.name == "map" else kind
    sign = "+" if part.how == "add" else "-"
    return f"{name} = {name} {sign} {say(of, part.value)}"


def _dropped(part: Assignment, table: Table, say: Say) -> str:
    if part.key is None:
        return part.column
    return _place(part.column, table.column(part.column).kind, part.key, say)


def _place(name: str, kind: kinds.Kind, key: Any, say: Say) -> str:
    if kind.name == "udt":
        return f"{name}.{kind.fields[key]}"
    return f"{name}[{say(INT if kind.name == 'list' else kind.parts[0], key)}]"


def _part(kind: kinds.Kind, key: Any) -> kinds.Kind:
    return kind.parts[key] if kind.name == "udt" else kind.parts[-1]
