"""Random changes of a table.

Invariant: what is drawn depends on the table, the stream and the count of statements alone, never on an
answer; so any part of a script can be played without the rest.

Random statements that must be refused.

Invariant: which error each gets does not depend on the types and contents of its table.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from lockstep.cql.wire.messages import UNSET, Unset
from lockstep.sim.fuzz import kinds
from lockstep.sim.fuzz.changes import Assignment, Batch, Change, Truncate, Wrong
from lockstep.sim.fuzz.facts import Relation
from lockstep.sim.fuzz.kinds import BESIDE, BOUND, EVERY, KEEPS_TIME, MESSAGE, PREPARED, way_of
from lockstep.sim.fuzz.tables import Column, Table
from lockstep.sim.runtime.streams import Stream


def draw_wrong(draw: Stream, table: Table) -> Wrong:
    key = table.of("partition")[0]
    value = kinds.literal(key.kind, draw.choice(key.pool))
    column = draw.choice(table.of("regular"))
    deletion = f"DELETE FROM {table.path} WHERE {key.name} = {value}"
    stamped = f"FROM {table.path} USING TIMESTAMP 7 WHERE {key.name} = {value}"
    texts = (
        (f"SELECT nothing FROM {table.path}", 0x2200),
        (f"SELECT * FROM {table.path}x", 0x2200),
        (f"SELECT * FROM {table.path} WHERE", 0x2000),
        (f"INSERT INTO {table.path} ({column.name}) VALUES (null)", 0x2200),
        (f"INSERT INTO {table.path} ({key.name}, {key.name}) VALUES ({value}, {value})", 0x2200),
        (f"UPDATE {table.path} SET {column.name} = null", 0x2000),
        (f"UPDATE {table.path} SET {key.name} = {value} WHERE {key.name} = {value}", 0x2200),
        (f"UPDATE {table.path} USING TTL -1 SET {column.name} = null WHERE {key.name} = {value}", 0x2200),
        (f"DELETE {key.name} FROM {table.path} WHERE {key.name} = {value}", 0x2200),
        (f"DELETE FROM {table.path} WHERE {column.name} = null", 0x2200),
        (f"SELECT * FROM {table.path} WHERE {key.name} = null", 0x2200),
        (f"SELECT * FROM {table.path} LIMIT 0", 0x2200),
        (f"SELECT {column.name}[1].x FROM {table.path}", 0x2200),
        (f"SELECT {column.name} FROM {table.path} GROUP BY {column.name}", 0x2200),
        (f"SELECT * FROM {table.path} ORDER BY {column.name} ASC", 0x2200),
        (f"SELECT DISTINCT {column.name} FROM {table.path}", 0x2200),
        (f"INSERT INTO {table.path} JSON '[1]'", 0x2200),
        (f"SELECT DISTINCT {key.name} FROM {table.path} PER PARTITION LIMIT 1", 0x2200),
        (f"BEGIN BATCH USING TTL 5 {deletion}; APPLY BATCH", 0x2200),
        (f"BEGIN BATCH USING TIMESTAMP 5 DELETE {stamped}; APPLY BATCH", 0x2200),
        (f"DELETE {stamped} IF EXISTS", 0x2200),
        (f"ALTER TABLE {table.path} RENAME {column.name} TO other", 0x2200),
        (f"ALTER TABLE {table.path} RENAME nothing TO other", 0x2200),
        (f"ALTER TABLE {table.path} DROP {key.name}", 0x2200),
        (f"ALTER TABLE {table.path} ADD {column.name} int", 0x2200),
        (f"CREATE TABLE {table.path} (a int PRIMARY KEY)", 0x2400),
        (f"SELECT * FROM {table.path} WHERE {key.name} = ?", 0x2200, None),
        (f"SELECT * FROM {table.path} WHERE {key.name} = ?", 0x2200, UNSET),
        (f"SELECT * FROM {table.path} WHERE {key.name} = ?", 0x2200),
        (f"SELECT * FROM {table.path} LIMIT ?", 0x2200, None),
        (f"SELECT * FROM {table.path} LIMIT ?", 0x2200, b"\0\0\0\0"),
        (f"DELETE FROM {table.path} WHERE {key.name} = ?", 0x2200, UNSET),
    )
    statement, error, *values = draw.choice(texts)
    return Wrong(statement, error, tuple(values))


#: Timestamps of neighbouring statements overlap, and ties are common; slowly they rise.
_STAMPS_WIDE: Final = 40
_STAMPS_RISE: Final = 4
#: How often the timestamp of the last statement is given again.
_AGAIN: Final = 0.2
_TTLS: Final = (0, 3, 6, 9, 30)
_VERBS: Final = ("INSERT", "INSERT", "INSERT", "UPDATE", "UPDATE", "UPDATE", "DELETE")
#: Columns of these are compared for order in conditions and filters.
UNORDERED: Final = ("duration", "list", "set", "map", "tuple", "vector", "udt", "counter")


class Changes:
    """Draws for one table."""

    def __init__(self, draw: Stream, table: Table) -> None:
        self.draw, self.table = draw, table
        self.count = 0
        self._last = 1000

    def next(self) -> Change | Batch | Truncate | Wrong:
        self.count += 1
        chance = self.draw.random()
        if chance < 0.01:
            return Truncate()
        if chance < 0.04:
            return draw_wrong(self.draw, self.table)
        if chance < 0.14:
            found = self._batch()
            way = self.way()
            changes = [self._with_unset(change) for change in found.changes]
            if way & MESSAGE:
                changes = [msgspec.structs.replace(change, way=self.way() & BOUND) for change in changes]
            if way & (MESSAGE | BESIDE) and found.stamp is None and any(c.stamp for c in changes):
                # Not for those that have one of their own.
                changes[0] = msgspec.structs.replace(changes[0], stamp=None)
                found = msgspec.structs.replace(found, stamp=self._stamp())
            return msgspec.structs.replace(found, way=way, changes=tuple(changes))
        return self._with_unset(msgspec.structs.replace(self._one(chance), way=self.way()))

    def _one(self, chance: float) -> Change:
        if self.table.counters:
            return self._counting()
        if not self.table.stamped and chance < 0.45:
            return self._conditional()
        return self.change(self._stamp(), indexes=True)

    @property
    def newest(self) -> int:
        """No timestamp so far is newer."""
        return 1000 + self.count * _STAMPS_RISE + _STAMPS_WIDE

    # ---- parts

    def way(self) -> int:
        """How it is sent, and which values are bound."""
        beside = way_of(self.draw)
        if self.table.views:
            # A view goes by the nodes' time alone.
            beside &= KEEPS_TIME
        if self.draw.random() < 0.6:
            return beside
        bound = EVERY if self.draw.random() < 0.5 else self.draw.randrange(EVERY)
        return bound | beside | (PREPARED if self.draw.random() < 0.5 else 0)

    def _with_unset(self, change: Change) -> Change:
        """Some of what a statement with bound values assigns may be unset."""
        if change.as_json or change.verb == "DELETE" or self.draw.random() < 0.85:
            return change
        parts = tuple(
            msgspec.structs.replace(part, value=UNSET) if self.draw.random() < 0.4 else part
            for part in change.assignments
        )
        return msgspec.structs.replace(change, assignments=parts)

    def _stamp(self) -> int | None:
        if not self.table.stamped:
            return None
        if self.draw.random() >= _AGAIN:
            self._last = 1000 + self.count * _STAMPS_RISE + self.draw.randrange(_STAMPS_WIDE)
        return self._last

    def _ttl(self) -> int | Unset | None:
        if self.draw.random() < 0.02:
            return UNSET
        return self.draw.choice(_TTLS) if self.draw.random() < 0.25 else None

    def one(self, column: Column) -> Any:
        return self.draw.choice(column.pool)

    def equals(self, *roles: str) -> tuple[Relation, ...]:
        return tuple(Relation((c.name,), "=", self.one(c)) for c in self.table.of(*roles))

    def _some(self, columns: tuple[Column, ...], least: int = 0) -> list[Column]:
        count = self.draw.randint(min(least, len(columns)), len(columns))
        return sorted(self.draw.sample(columns, count), key=lambda column: column.name)

    # ---- changes

    def change(self, stamp: int | None, *, indexes: bool) -> Change:
        """`indexes`: whether elements of lists may be named, which reads before it writes."""
        verb = self.draw.choice(_VERBS)
        if verb == "DELETE":
            return self._delete(stamp, indexes=indexes)
        static_only = bool(self.table.of("static")) and self.draw.random() < 0.15
        if verb == "INSERT":
            return self._insert(stamp, static_only=static_only)
        roles = ("static",) if static_only else ("static", "regular")
        columns = self._some(self.table.of(*roles), 1)
        if not static_only and all(column.role == "static" for column in columns):
            columns.append(self.table.of("regular")[0])
        where = self.equals("partition", *(() if static_only else ("clustering",)))
        assignments = tuple(self._assignment(column, indexes=indexes) for column in columns)
        ttl_s = self._ttl()
        return Change(
            verb="UPDATE",
            where=self._widened(where, assignments),
            assignments=assignments,
            stamp=stamp,
            ttl_s=ttl_s,
        )

    def _widened(self, where: tuple[Relation, ...], parts: tuple[Assignment, ...]) -> tuple[Relation, ...]:
        """Sometimes the last column of a key is IN several."""
        if self.draw.random() > 0.1 or any(
            self.table.column(part.column).kind.name == "list" for part in parts
        ):
            return where
        last = [where[-1].columns[0], self.table.of("partition")[-1].name]
        name = self.draw.choice(last)
        column = self.table.column(name)
        if column.kind.is_cells:
            return where
        values = tuple(self.draw.sample(column.pool, self.draw.randint(1, len(column.pool))))
        return tuple(Relation((name,), "IN", values) if r.columns == (name,) else r for r in where)

    def _insert(self, stamp: int | None, *, static_only: bool = False) -> Change:
        roles = ("static",) if static_only else ("static", "regular")
        columns = self._some(self.table.of(*roles), 1 if static_only else 0)
        assignments = tuple(
            Assignment(column.name, "set", None if self.draw.random() < 0.1 else self.one(column))
            for column in columns
        )
        where = self.equals("partition", *(() if static_only else ("clustering",)))
        as_json = ""
        if (
            not static_only
            and self.draw.random() < 0.2
            and all(kinds.jsonable(c.kind) for c in self.table.columns)
        ):
            as_json = self.draw.choice(("NULL", "UNSET"))
            if as_json == "NULL":
                named = {part.column: part for part in assignments}
                # Null for every column that is not named.
                assignments = tuple(
                    named.get(c.name, Assignment(c.name, "set", None))
                    for c in self.table.of("static", "regular")
                )
        return Change(
            verb="INSERT",
            where=where,
            assignments=assignments,
            stamp=stamp,
            ttl_s=self._ttl(),
            as_json=as_json,
        )

    def _assignment(self, column: Column, *, indexes: bool) -> Assignment:
        kind, value = column.kind, self.one(column)
        if not kind.is_cells or self.draw.random() < 0.25:
            return Assignment(column.name, "set", None if self.draw.random() < 0.1 else value)
        if kind.name == "udt":
            place = self.draw.randrange(len(kind.parts))
            return Assignment(column.name, "put", value[place], place)
        ways = {"list": ["add", "prepend"], "set": ["add", "remove"], "map": ["add", "remove", "put"]}
        choices = ways[kind.name] + (["put", "remove"] if kind.name == "list" and indexes else [])
        how = self.draw.choice(choices)
        if how == "remove" and kind.name == "map":
            value = tuple(key for key, _ in value)
        if how != "put":
            return Assignment(column.name, how, value)
        if kind.name == "list":
            return Assignment(column.name, "put", value[0], self.draw.choice((0, 0, 0, 1, 2)))
        key, held = value[0]
        return Assignment(column.name, "put", None if self.draw.random() < 0.2 else held, key)

    def _delete(self, stamp: int | None, *, indexes: bool) -> Change:
        chance = self.draw.random()
        if chance < 0.45:
            return self._delete_cells(stamp, indexes=indexes)
        where = tuple(self._maybe_in(relation) for relation in self.equals("partition"))
        clustering = self.table.of("clustering")
        if clustering and chance < 0.97:
            whole = self.draw.randint(0 if chance > 0.9 else 1, len(clustering))
            if whole > 1 and self.draw.random() < 0.2:
                where += (self.several(clustering[:whole]),)
            else:
                named = [Relation((c.name,), "=", self.one(c)) for c in clustering[:whole]]
                where += tuple(map(self._maybe_in, named))
            if whole < len(clustering) and self.draw.random() < 0.7:
                where += self.slice(clustering[whole:])
        return Change(verb="DELETE", where=where, stamp=stamp)

    def _maybe_in(self, relation: Relation) -> Relation:
        return self.in_some(self.table.column(relation.columns[0])) if self.draw.random() < 0.1 else relation

    def in_some(self, column: Column) -> Relation:
        values = tuple(self.draw.choice(column.pool) for _ in range(self.draw.choice((0, 1, 2, 2, 3, 4))))
        return Relation((column.name,), "IN", values)

    def several(self, columns: tuple[Column, ...]) -> Relation:
        """Of some columns together."""
        names = tuple(column.name for column in columns)
        values = tuple(tuple(self.one(c) for c in columns) for _ in range(self.draw.randint(1, 3)))
        return self.draw.choice((Relation(names, "IN", values), Relation(names, "=", values[0])))

    def slice(self, columns: tuple[Column, ...]) -> tuple[Relation, ...]:
        """One or two bounds of the first columns."""
        if len(columns) > 1 and self.draw.random() < 0.3:
            chosen = columns[: self.draw.randint(2, len(columns))]
        else:
            chosen = columns[:1]
        names = tuple(column.name for column in chosen)
        ops = self.draw.choice(((">",), (">=",), ("<",), ("<=",), (">", "<"), (">=", "<="), (">", "<=")))
        found = []
        for op in ops:
            values = tuple(self.one(column) for column in chosen)
            found.append(Relation(names, op, values if len(names) > 1 else values[0]))
        return tuple(found)

    def _delete_cells(self, stamp: int | None, *, indexes: bool) -> Change:
        static_only = bool(self.table.of("static")) and self.draw.random() < 0.3
        columns = self._some(self.table.of("static" if static_only else "regular"), 1)
        parts = []
        for column in columns:
            kind, value = column.kind, self.one(column)
            key = None
            if kind.is_cells and self.draw.random() < 0.6:
                if kind.name == "list":
                    key = self.draw.choice((0, 0, 1)) if indexes else None
                elif kind.name == "udt":
                    key = self.draw.randrange(len(kind.parts))
                else:
                    key = value[0][0] if kind.name == "map" else value[0]
            parts.append(Assignment(column.name, "drop", None, key))
        where = self.equals("partition", *(() if static_only else ("clustering",)))
        return Change(
            verb="DELETE", where=self._widened(where, tuple(parts)), assignments=tuple(parts), stamp=stamp
        )

    def _batch(self) -> Batch:
        if self.table.counters:
            return Batch(tuple(self._counting() for _ in range(self.draw.randint(1, 4))))
        if not self.table.stamped and self.draw.random() < 0.5:
            return self._deciding_batch()
        stamp = self._stamp()
        own = stamp is not None and self.draw.random() < 0.5
        changes = tuple(
            self.change(self._stamp() if own else None, indexes=False) for _ in range(self.draw.randint(1, 4))
        )
        return Batch(changes, self.draw.random() < 0.5, None if own else stamp)

    def _counting(self) -> Change:
        columns = self._some(self.table.of("regular"), 1)
        roles: tuple[str, ...] = ("partition", "clustering")
        if self.table.of("static") and self.draw.random() < 0.3:
            columns, roles = self._some(self.table.of("static"), 1), ("partition",)
        parts = tuple(Assignment(c.name, "count", self.draw.choice((1, 2, -1, 10, -7))) for c in columns)
        return Change(verb="UPDATE", where=self.equals(*roles), assignments=parts)

    # ---- conditions

    def _conditional(self) -> Change:
        change = self.change(None, indexes=False)
        while not self._is_one_row(change):
            change = self.change(None, indexes=False)
        if change.verb == "INSERT":
            return msgspec.structs.replace(change, exists="NOT")
        static_only = not any(self.table.column(r.columns[0]).role == "clustering" for r in change.where)
        if self.draw.random() < 0.3:
            return msgspec.structs.replace(change, exists="YES")
        roles = ("static",) if static_only and self.table.of("clustering") else ("static", "regular")
        fit = tuple(c for c in self.table.of(*roles) if c.kind.name != "duration")
        if not fit:
            return msgspec.structs.replace(change, exists="YES")
        columns = self._some(fit, 1)[:2]
        return msgspec.structs.replace(change, conditions=tuple(_condition(self.draw, c) for c in columns))

    def _deciding_batch(self) -> Batch:
        """Changes of one partition, some with conditions; those of one row would have to fit each other."""
        key = self.equals("partition")
        changes: list[Change] = []
        for _ in range(self.draw.randint(1, 4)):
            change = self._conditional()
            if changes and self.draw.random() < 0.4:
                change = self.change(None, indexes=False)
            where = key + change.where[len(key) :]
            known = any(known.where == where and known.is_conditional for known in changes)
            static = len(where) == len(key) and bool(self.table.of("clustering")) and change.exists == "NOT"
            if change.as_json or known or static or any(r.op == "IN" for r in change.where):
                continue
            changes.append(msgspec.structs.replace(change, where=where))
        return Batch(tuple(changes), self.draw.random() < 0.5) if changes else self._deciding_batch()

    def _is_one_row(self, change: Change) -> bool:
        if any(relation.op != "=" for relation in change.where):
            return False
        named = {relation.columns[0] for relation in change.where}
        if all(column.name in named for column in self.table.of("clustering")):
            return True
        return bool(change.assignments) and change.verb == "UPDATE"


def _condition(draw: Stream, column: Column) -> Relation:
    chance = draw.random()
    if column.kind.is_cells and (chance < 0.6 or column.kind.name == "udt"):
        return _part_condition(draw, column)
    if chance < 0.2:
        return Relation((column.name,), draw.choice(("=", "!=")), None)
    if chance < 0.3 and column.kind.name in ("list", "set", "map"):
        held = draw.choice(column.pool)[0]
        choices = [("CONTAINS", held[1]), ("CONTAINS KEY", held[0])] if column.kind.name == "map" else []
        return Relation((column.name,), *draw.choice(choices or [("CONTAINS", held)]))
    if chance < 0.35:
        values = tuple(draw.sample(column.pool, draw.randint(1, len(column.pool))))
        return Relation((column.name,), "IN", values)
    ops = ("=", "=", "!=") if column.kind.name in UNORDERED else ("=", "=", "!=", "<", "<=", ">", ">=")
    return Relation((column.name,), draw.choice(ops), draw.choice(column.pool))


def _part_condition(draw: Stream, column: Column) -> Relation:
    """Of an element or a field; a set is compared as a whole."""
    kind, value = column.kind, draw.choice(column.pool)
    ops: tuple[str, ...] = ("=", "=", "!=")
    if kind.name == "set":
        return Relation((column.name,), draw.choice(ops), value)
    if kind.name == "udt":
        key = draw.randrange(len(kind.parts))
        held = value[key]
    elif kind.name == "list":
        key, held = draw.randrange(3), value[0]
    else:
        key, held = value[0]
    part = kind.parts[key] if kind.name == "udt" else kind.parts[-1]
    if held is not None and draw.random() < 0.2:
        return Relation((column.name,), "IN", (held,) * draw.choice((1, 2)), key=key)
    if held is not None and part.name not in UNORDERED:
        ops = (*ops, "<", ">=")
    return Relation((column.name,), draw.choice(ops), held, key=key)
