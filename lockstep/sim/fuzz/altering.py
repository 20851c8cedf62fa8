"""Changes of tables and types, and materialized views: as text, and what becomes of what tables and views
hold.

Invariant: the values of a user's type that gets a field have null there; a column that comes back is empty,
and shows what is written later and is newer than its drop. What a view holds is made anew from all that is
visible in its table each time it is looked at; its rows live in tables like others, so every SELECT fits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from lockstep.sim.fuzz import kinds
from lockstep.sim.fuzz.changes import DONE, Answer, Moment
from lockstep.sim.fuzz.facts import Content, Facts, Mark, Relation, Row, Seen, each
from lockstep.sim.fuzz.kinds import Kind, Say
from lockstep.sim.fuzz.queries import Look
from lockstep.sim.fuzz.tables import KEYSPACE, Column, Table, View
from lockstep.sim.runtime.streams import Stream


class Alter(msgspec.Struct, frozen=True):
    """Adds a column, or drops one with all that it holds, which is no newer than `stamp`."""

    add: Column | None = None
    drop: str = ""
    stamp: int | None = None

    def text(self, table: Table, say: Say) -> str:
        if self.add is None:
            using = "" if self.stamp is None else f" USING TIMESTAMP {self.stamp}"
            return f"ALTER TABLE {table.path} DROP {self.drop}{using}"
        static = " STATIC" if self.add.role == "static" else ""
        return f"ALTER TABLE {table.path} ADD {self.add.name} {kinds.text(self.add.kind)}{static}"

    def changed(self, table: Table) -> Table:
        left = tuple(column for column in table.columns if column.name != self.drop)
        return msgspec.structs.replace(table, columns=left + ((self.add,) if self.add else ()))

    def apply(self, content: Content, moment: Moment) -> Answer:
        if self.drop:
            content.forget(self.drop, self.stamp)
        content.table = self.changed(content.table)
        return DONE


class Rename(msgspec.Struct, frozen=True):
    """A column of the key gets another name, in the table's views too."""

    old: str
    new: str

    def text(self, table: Table, say: Say) -> str:
        return f"ALTER TABLE {table.path} RENAME {self.old} TO {self.new}"

    def changed(self, table: Table) -> Table:
        columns = tuple(
            msgspec.structs.replace(column, name=self._named(column.name)) for column in table.columns
        )
        views = tuple(self._view(view) for view in table.views)
        return msgspec.structs.replace(table, columns=columns, views=views)

    def _view(self, view: View) -> View:
        lists = {name: getattr(view, name) for name in ("partition", "clustering", "shown", "falling")}
        named = {name: tuple(map(self._named, names)) for name, names in lists.items()}
        return msgspec.structs.replace(view, **named)

    def _named(self, name: str) -> str:
        return self.new if name == self.old else name

    def apply(self, content: Content, moment: Moment) -> Answer:
        for facts in content.partitions.values():
            _with_ranges(facts, self._relation)
        content.table = self.changed(content.table)
        return DONE

    def _relation(self, relation: Relation) -> Relation:
        return msgspec.structs.replace(relation, columns=tuple(map(self._named, relation.columns)))


class AlterType(msgspec.Struct, frozen=True):
    """A user's type gets a field, whose values are `pool`; without a `part` its first one gets that name."""

    user: str
    field: str
    part: Kind | None = None
    pool: tuple[Any, ...] = (None,)

    def text(self, table: Table, say: Say) -> str:
        head = f"ALTER TYPE {KEYSPACE}.{self.user}"
        if self.part is not None:
            return f"{head} ADD {self.field} {kinds.text(self.part)}"
        [user] = [user for user in table.users if user.user == self.user]
        return f"{head} RENAME {user.fields[0]} TO {self.field}"

    def changed(self, table: Table) -> Table:
        columns = tuple(self.column(column) for column in table.columns)
        users = tuple(self._kind(user) for user in table.users)
        return msgspec.structs.replace(table, columns=columns, users=users)

    def column(self, column: Column) -> Column:
        pool = tuple(
            self._value(column.kind, value, self.pool[turn % len(self.pool)])
            for turn, value in enumerate(column.pool)
        )
        return msgspec.structs.replace(column, kind=self._kind(column.kind), pool=pool)

    def _kind(self, kind: Kind) -> Kind:
        parts, fields = tuple(map(self._kind, kind.parts)), kind.fields
        if kind.user == self.user and self.part is not None:
            parts, fields = (*parts, self.part), (*fields, self.field)
        elif kind.user == self.user:
            fields = (self.field, *fields[1:])
        return msgspec.structs.replace(kind, parts=parts, fields=fields)

    def _value(self, kind: Kind, value: Any, filler: Any) -> Any:
        if value is None or not kind.parts or self.part is None:
            return value
        if kind.name == "map":
            return tuple(self._parts(kind, pair, filler) for pair in value)
        if kind.name in ("tuple", "udt"):
            ending = (filler,) if kind.user == self.user else ()
            return self._parts(kind, value, filler) + ending
        return tuple(self._value(kind.parts[0], element, filler) for element in value)

    def _parts(self, kind: Kind, values: Sequence[Any], filler: Any) -> tuple[Any, ...]:
        return tuple(self._value(part, one, filler) for part, one in zip(kind.parts, values, strict=True))

    def apply(self, content: Content, moment: Moment) -> Answer:
        table = content.table

        def grown(kind: Kind, value: Any) -> Any:
            return self._value(kind, value, None)

        def relation(found: Relation) -> Relation:
            columns = [table.column(name).kind for name in found.columns]

            def whole(value: Any) -> Any:
                return grown(columns[0], value) if len(columns) == 1 else tuple(map(grown, columns, value))

            value = tuple(map(whole, found.value)) if found.op == "IN" else whole(found.value)
            return msgspec.structs.replace(found, value=value)

        for facts in content.partitions.values():
            _revalue(facts, table, grown)
            _with_ranges(facts, relation)
        content.table = self.changed(table)
        return DONE


def _with_ranges(facts: Facts, changed: Callable[[Relation], Relation]) -> None:
    facts.ranges = [(tuple(map(changed, relations)), stamp) for relations, stamp in facts.ranges]


def _revalue(facts: Facts, table: Table, grown: Callable[[Kind, Any], Any]) -> None:
    """All values anew: places stay, for bytes leave out the nulls that end a value."""

    def keyed(role: str, values: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(grown(column.kind, value) for column, value in zip(table.of(role), values, strict=True))

    facts.key = keyed("partition", facts.key)
    for row in facts.rows.values():
        row.clustering = keyed("clustering", row.clustering)
        _revalue_cells(row, table.of("regular"), grown)
    _revalue_cells(facts.static, table.of("static"), grown)


def _revalue_cells(row: Row, columns: Sequence[Column], grown: Callable[[Kind, Any], Any]) -> None:
    for column in columns:
        kind, held = column.kind, row.cells.get(column.name, {})
        path_kind = kind.parts[0] if kind.is_cells and kind.name in ("set", "map") else None
        row.cells[column.name] = {
            path if path_kind is None else grown(path_kind, path): [
                msgspec.structs.replace(cell, value=_grown_cell(kind, path, cell.value, grown))
                for cell in cells
            ]
            for path, cells in held.items()
        }


def _grown_cell(kind: Kind, path: Any, value: Any, grown: Callable[[Kind, Any], Any]) -> Any:
    if not kind.is_cells:
        return grown(kind, value)
    if kind.name == "udt":
        return grown(kind.parts[path], value)
    return value if kind.name == "set" else grown(kind.parts[-1], value)


class ViewLook(msgspec.Struct, frozen=True):
    """A SELECT from the view of this number."""

    number: int
    look: Look

    def text(self, table: Table, say: Say) -> str:
        return self.look.text(table_of(table, self.number), say)

    def apply(self, content: Content, moment: Moment) -> Answer:
        return self.look.apply(_content(content, self.number, moment.now_s), moment)


def table_of(base: Table, number: int) -> Table:
    """The view as a table."""
    view = base.views[number]
    key = [*view.partition, *view.clustering]
    shown = [base.column(name) for name in key]
    shown += [c for c in base.of("regular") if c.name not in key and (not view.shown or c.name in view.shown)]
    columns = tuple(_placed(column, view) for column in shown)
    return Table(view.name, columns, base.users, stamped=base.stamped)


def _placed(column: Column, view: View) -> Column:
    role = "regular"
    if column.name in view.partition:
        role = "partition"
    elif column.name in view.clustering:
        role = "clustering"
    return msgspec.structs.replace(column, role=role, reversed=column.name in view.falling)


def _content(base: Content, number: int, now_s: int) -> Content:
    content = Content(table_of(base.table, number))
    table = content.table
    partition, clustering = table.of("partition"), table.of("clustering")
    for facts, _, rows in each(base, now_s):
        keyed = dict(zip((c.name for c in base.table.of("partition")), facts.key, strict=True))
        names = [column.name for column in base.table.of("clustering")]
        for at, seen in rows:
            values = {**keyed, **dict(zip(names, at, strict=True)), **seen.values}
            key = tuple(values[column.name] for column in partition)
            place = tuple(values[column.name] for column in clustering)
            if None not in key and None not in place:
                _copy(content.row(key, place), seen, table.of("regular"))
    return content


def _copy(row: Row, seen: Seen, columns: Sequence[Column]) -> None:
    row.marks.append(Mark(0, 0, 0))
    for column in columns:
        for path, cell in seen.cells[column.name]:
            row.put(column.name, path, cell)


# ---- drawing


def draw_views(draw: Stream, table: str, columns: Sequence[Column]) -> tuple[View, ...]:
    """Views of a table without counters."""
    of: dict[str, list[Column]] = {role: [c for c in columns if c.role == role] for role in _ROLES}
    keys = [*of["partition"], *of["clustering"]]
    return tuple(_view(draw, f"{table}_w{number}", keys, of) for number in range(draw.choice((1, 1, 2))))


_ROLES = ("partition", "clustering", "static", "regular")


def _view(draw: Stream, name: str, keys: list[Column], of: dict[str, list[Column]]) -> View:
    fit = [c for c in of["regular"] if not c.kind.is_cells and not kinds.has_duration(c.kind)]
    chosen = keys + ([draw.choice(fit)] if fit and draw.random() < 0.7 else [])
    chosen = draw.sample(chosen, len(chosen))
    count = draw.choice((1, 1, 2))
    partition, clustering = chosen[:count], chosen[count:]
    if len(partition) == 1 and clustering and _may_be_empty(partition[0]):
        # A partition key of one column cannot be empty; one of several can.
        partition.append(clustering.pop(0))
    shown: tuple[str, ...] = ()
    if of["static"] or draw.random() < 0.4:
        some = draw.sample(of["regular"], draw.randint(0, len(of["regular"])))
        shown = tuple(sorted({c.name for c in (*chosen, *some)}))
    falling = tuple(c.name for c in clustering if draw.random() < 0.4)
    return View(name, _names(partition), _names(clustering), shown, falling)


def _may_be_empty(column: Column) -> bool:
    return any(not kinds.wire(column.kind, value) for value in column.pool)


def _names(columns: Sequence[Column]) -> tuple[str, ...]:
    return tuple(column.name for column in columns)
