"""Statements that change rows, alone or together in a batch, also if conditions hold: as text, and as what
they add to the facts.

Invariant: `apply` answers what the product must answer: None, the rows of a condition, or an error's code,
and then nothing was changed. All conditions are judged by what was visible before any of the changes. `say`
is asked for every value of a statement once, in the order in which they stand there.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from lockstep.cql.wire.messages import UNSET, Unset, Value
from lockstep.sim.fuzz import kinds
from lockstep.sim.fuzz.facts import (
    Cell,
    Content,
    Mark,
    Relation,
    Row,
    Seen,
    condition_holds,
    keys_of,
    where_text,
)
from lockstep.sim.fuzz.kinds import BESIDE, BIGINT, INT, TEXT, Say
from lockstep.sim.fuzz.tables import Column, Table, rank, star


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
        place = _said_place(name, kind, part.key, say)
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
    return _said_place(part.column, table.column(part.column).kind, part.key, say)


def _said_place(name: str, kind: kinds.Kind, key: Any, say: Say) -> str:
    if kind.name == "udt":
        return f"{name}.{kind.fields[key]}"
    return f"{name}[{say(INT if kind.name == 'list' else kind.parts[0], key)}]"


def _part(kind: kinds.Kind, key: Any) -> kinds.Kind:
    return kind.parts[key] if kind.name == "udt" else kind.parts[-1]


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
    # Who gives a row as JSON is about all columns, also about those that stay as they are.
    written = {table.column(part.column).role for change in changes for part in change.assignments}
    if "static" in written or any(change.as_json for change in changes):
        known |= {column.name for column in table.of("static")}
    keys = {column.name for column in table.of("clustering")}
    if not keys or any(relation.columns[0] in keys for change in changes for relation in change.where):
        known |= {column.name for column in table.of("regular")}
    return known


INVALID: Final = 0x2200


class Moment(msgspec.Struct):
    """When a statement runs: the nodes' second, and the next timestamp that a node would give."""

    now_s: int
    turn: int = 0

    def next_turn(self) -> int:
        self.turn += 1
        return self.turn


class Answer(msgspec.Struct, frozen=True):
    """What is expected: an error's code, or rows; None are no rows at all. `applied` of a condition, whose
    rows are those that are told with it."""

    error: int = 0
    rows: tuple[tuple[Any, ...], ...] | None = None
    ordered: bool = True
    applied: bool | None = None


DONE: Final = Answer()


class Assignment(msgspec.Struct, frozen=True):
    """`how`: set, add, remove, prepend, put (of `key`), drop (of `key`, or of all of it), count.

    A value that is UNSET leaves the column as it is.
    """

    column: str
    how: str
    value: Any = None
    key: Any = None


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One INSERT, UPDATE or DELETE; `assignments` of a DELETE are drops, without any it deletes rows."""

    verb: str
    where: tuple[Relation, ...]
    assignments: tuple[Assignment, ...] = ()
    stamp: int | None = None
    ttl_s: int | Unset | None = None
    as_json: str = ""
    conditions: tuple[Relation, ...] = ()
    exists: str = ""
    way: int = 0

    def text(self, table: Table, say: Say) -> str:
        return text_of(self, table, say)

    @property
    def is_conditional(self) -> bool:
        return bool(self.conditions or self.exists)

    def apply(self, content: Content, moment: Moment) -> Answer:
        if self.is_conditional:
            return _decided((self,), content, moment, is_batch=False)
        stamp = moment.next_turn() if self.stamp is None else self.stamp
        return perform(self, content, stamp, moment)


class Batch(msgspec.Struct, frozen=True):
    changes: tuple[Change, ...]
    logged: bool = False
    stamp: int | None = None
    way: int = 0

    def text(self, table: Table, say: Say) -> str:
        return batch_text(self, table, say)

    def apply(self, content: Content, moment: Moment) -> Answer:
        if any(change.is_conditional for change in self.changes):
            return _decided(self.changes, content, moment, is_batch=True)
        given = moment.next_turn() if self.stamp is None else self.stamp
        for change in self.changes:
            stamp = given if change.stamp is None else change.stamp
            assert perform(change, content, stamp, moment) is DONE
        return DONE


class Truncate(msgspec.Struct, frozen=True):
    def text(self, table: Table, say: Say) -> str:
        return f"TRUNCATE {table.path}"

    def apply(self, content: Content, moment: Moment) -> Answer:
        content.partitions.clear()
        return DONE


class Wrong(msgspec.Struct, frozen=True):
    """A statement that must be refused."""

    statement: str
    error: int
    values: tuple[Value, ...] = ()

    def text(self, table: Table, say: Say) -> str:
        return self.statement

    def apply(self, content: Content, moment: Moment) -> Answer:
        return Answer(self.error)


# ---- as facts


def _decided(changes: Sequence[Change], content: Content, moment: Moment, *, is_batch: bool) -> Answer:
    told = judged(changes, content, moment.now_s, is_batch=is_batch)
    turn = moment.next_turn()
    if told is not None:
        return Answer(applied=False, rows=told)
    for change in changes:
        answer = perform(change, content, turn, moment)
        if answer is not DONE:
            return answer
    return Answer(applied=True, rows=((),))


def perform(change: Change, content: Content, stamp: int, moment: Moment) -> Answer:
    table = content.table
    keys = keys_of(table.of("partition"), change.where)
    clustering = table.of("clustering")
    ranged = tuple(r for r in change.where if table.column(r.columns[0]).role == "clustering")
    if change.verb == "DELETE" and not change.assignments:
        for key in keys:
            _delete_rows(content, key, ranged, stamp)
        return DONE
    of_static = not ranged and bool(clustering)
    clusterings = [()] if of_static else keys_of(clustering, ranged)
    failed = False
    writes = []
    for key, at in itertools.product(keys, clusterings):
        given = [part for part in change.assignments if part.value is not UNSET]
        static = [part for part in given if table.column(part.column).role == "static"]
        regular = [part for part in given if part not in static]
        failed = failed or not _lists_fit(content, key, at, change.assignments, moment)
        writes.append((key, at, static, regular))
    if failed:
        return Answer(INVALID)
    ttl_s = change.ttl_s if isinstance(change.ttl_s, int) else table.default_ttl
    for key, at, static, regular in writes:
        seen = content.static(content.partition(key), moment.now_s)
        _write(content, content.partition(key).static, static, stamp, ttl_s, moment, seen)
        if of_static:
            continue
        row = content.row(key, at)
        if change.verb == "INSERT":
            row.marks.append(Mark(stamp, ttl_s, moment.now_s + ttl_s))
        known = content.find(key, at, moment.now_s)
        _write(content, row, regular, stamp, ttl_s, moment, known)
    return DONE


def _delete_rows(content: Content, key: tuple[Any, ...], ranged: tuple[Relation, ...], stamp: int) -> None:
    if ranged:
        content.partition(key).ranges.append((ranged, stamp))
    else:
        content.partition(key).deletions.append(stamp)


def _lists_fit(content: Content, key: Any, at: Any, parts: Sequence[Assignment], moment: Moment) -> bool:
    """Whether every index is one of the list."""
    for part in parts:
        column = content.table.column(part.column)
        if column.kind.name != "list" or part.key is None:
            continue
        held = _held(content, key, at, column, moment)
        if part.key >= len(held):
            return False
    return True


def _held(content: Content, key: Any, at: Any, column: Column, moment: Moment) -> list[tuple[Any, Cell]]:
    if column.role == "static":
        return content.static(content.partition(key), moment.now_s).cells.get(column.name, [])
    seen = content.find(key, at, moment.now_s)
    return [] if seen is None else seen.cells.get(column.name, [])


def _write(
    content: Content,
    row: Row,
    parts: Sequence[Assignment],
    stamp: int,
    ttl_s: int,
    moment: Moment,
    seen: Seen | None,
) -> None:
    for part in parts:
        column = content.table.column(part.column)
        if stamp <= content.dead.get(column.name, stamp - 1):
            continue
        pen = _Pen(row, column, stamp, ttl_s, moment, seen.cells.get(column.name, []) if seen else [])
        pen.write(part)


class _Pen:
    """Writes one assignment to one row."""

    def __init__(
        self, row: Row, column: Column, stamp: int, ttl_s: int, moment: Moment, held: list[tuple[Any, Cell]]
    ) -> None:
        self.row, self.name, self.kind = row, column.name, column.kind
        self.stamp, self.ttl_s, self.moment, self.held = stamp, ttl_s, moment, held

    def put(self, path: Any, kind: kinds.Kind, value: Any) -> None:
        if value is None:
            self.row.put(self.name, path, Cell(self.stamp, None, b"", 0, self.moment.now_s))
            return
        raw = b"" if value is True and self.kind.name == "set" else kinds.wire(kind, value)
        ends_s = self.moment.now_s + self.ttl_s if self.ttl_s else 0
        self.row.put(self.name, path, Cell(self.stamp, value, raw, self.ttl_s, ends_s))

    def write(self, part: Assignment) -> None:
        if part.how == "count":
            count = part.value + sum(cell.value for cell in self.row.cells.get(self.name, {}).get(None, ()))
            self.row.cells[self.name] = {None: [Cell(self.moment.next_turn(), count, b"", 0, 0)]}
        elif part.key is not None:
            self._element(part)
        elif not self.kind.is_cells:
            self.put(None, self.kind, part.value)
        elif part.how == "drop":
            self.row.columns.setdefault(self.name, []).append(self.stamp)
        elif part.how == "remove":
            self._remove(part.value)
        else:
            if part.how == "set":
                self.row.columns.setdefault(self.name, []).append(self.stamp - 1)
            self._add(part)

    def _element(self, part: Assignment) -> None:
        path, kind = part.key, self.kind.parts[-1]
        if self.kind.name == "list":
            path = self.held[part.key][0]
        elif self.kind.name == "udt":
            kind = self.kind.parts[part.key]
        self.put(path, kind, None if part.how == "drop" else part.value)

    def _remove(self, values: Sequence[Any]) -> None:
        if self.kind.name == "list":
            gone = [kinds.wire(self.kind.parts[0], value) for value in values]
            paths = [path for path, cell in self.held if cell.raw in gone]
        else:
            paths = list(values)
        for path in paths:
            self.put(path, self.kind.parts[-1], None)

    def _add(self, part: Assignment) -> None:
        value = part.value or ()
        if self.kind.name == "set":
            for element in value:
                self.put(element, self.kind.parts[0], True)
        elif self.kind.name == "map":
            for key, held in value:
                self.put(key, self.kind.parts[1], held)
        elif self.kind.name == "udt":
            for place, held in enumerate(value):
                if held is not None:
                    self.put(place, self.kind.parts[place], held)
        else:
            turn = self.moment.next_turn()
            for place, held in enumerate(value):
                path = (0, -turn, place) if part.how == "prepend" else (1, turn, place)
                self.put(path, self.kind.parts[0], held)
