"""Random SELECTs of a table.

Invariant: as in `draws`, nothing depends on an answer. What is drawn is allowed by the language, but that
ALLOW FILTERING may be missing.

Random selections of a table's rows.

Invariant: what is drawn is allowed for the types of its columns.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from lockstep.cql.wire.messages import UNSET
from lockstep.sim.fuzz import kinds
from lockstep.sim.fuzz.facts import Content, Relation
from lockstep.sim.fuzz.generators import UNORDERED, Changes
from lockstep.sim.fuzz.queries import (
    AGGREGATES,
    OF_COLLECTIONS,
    TIMES,
    Look,
    Selector,
    named_keys,
    needs_filtering,
)
from lockstep.sim.fuzz.tables import Column, Table
from lockstep.sim.runtime.streams import Stream

_SUMMED: Final = ("int", "bigint", "smallint", "tinyint", "varint", "counter")
_COMPUTED: Final = ("int", "bigint", "smallint", "tinyint", "varint")
#: (what is cast, what to).
_CASTS: Final[dict[str, tuple[str, ...]]] = {
    **dict.fromkeys(_COMPUTED, (*_COMPUTED, "text", "decimal", "double")),
    "double": ("tinyint", "smallint", "int", "bigint"),
    "text": ("text",),
    "ascii": ("text",),
}


class Selectors:
    """Draws for one table."""

    def __init__(self, draw: Stream, table: Table) -> None:
        self.draw, self.table = draw, table

    def some(self, *, group: int) -> tuple[Selector, ...]:
        """() is `*`."""
        if not group and self.draw.random() < 0.35:
            return ()
        count = self.draw.randint(1, 4)
        if group or self.draw.random() < 0.12:
            return tuple(self._aggregate() for _ in range(count))
        return tuple(self._selector() for _ in range(count))

    def _aggregate(self) -> Selector:
        how = self.draw.choice(("column", *AGGREGATES))
        columns = self.table.columns
        if how in ("sum", "avg"):
            columns = tuple(c for c in columns if c.kind.name in _SUMMED)
        elif how in ("min", "max"):
            columns = tuple(c for c in columns if not c.kind.parts and c.kind.name != "duration")
        elif how == "given":
            columns = tuple(c for c in columns if c.kind.name == "int")
        if how == "rows" or not columns:
            return Selector("rows")
        return Selector(how, self.draw.choice(columns).name)

    def _selector(self) -> Selector:
        if self.draw.random() < 0.05:
            return Selector("token")
        column = self.draw.choice(self.table.columns)
        chance = self.draw.random()
        if chance < 0.35 and column.role in ("static", "regular") and not self.table.counters:
            # When nodes gave the timestamps, nobody knows them.
            how = self.draw.choice(TIMES if self.table.stamped else ("ttl",))
            part = self._part(column) if self.draw.random() < 0.6 else Selector("")
            return Selector(how, column.name, part.key, part.how)
        if chance < 0.5:
            return self._computed(column)
        if chance < 0.8:
            part = self._part(column)
            return part if part.how else self._computed(column)
        return Selector("column", column.name)

    def _part(self, column: Column) -> Selector:
        """An element, a field or a slice, of what has such."""
        kind = column.kind
        if kind.name == "udt":
            return Selector("field", column.name, self.draw.randrange(len(kind.parts)))
        if kind.name not in ("set", "map"):
            return Selector("")
        keys = [self._key(column) for _ in range(2)]
        if self.draw.random() < 0.6:
            return Selector("element", column.name, keys[0])
        low, high = sorted(keys, key=lambda key: kinds.order(kind.parts[0], key))
        chosen = self.draw.choice(((low, high), (low, None), (None, high)))
        return Selector("slice", column.name, chosen)

    def _key(self, column: Column) -> Any:
        entry = self.draw.choice(self.draw.choice(column.pool))
        return entry[0] if column.kind.name == "map" else entry

    def _computed(self, column: Column) -> Selector:
        kind, name = column.kind, column.name
        if kind.name in ("list", "set", "map"):
            fit = {"map": ("collection_count", "map_keys", "map_values")}
            # Durations have no order.
            others = OF_COLLECTIONS[: 1 if kinds.has_duration(kind) else 3]
            return Selector(self.draw.choice(fit.get(kind.name, others)), name)
        whole = [c.name for c in self.table.columns if c.kind.name in _COMPUTED]
        if kind.name in _COMPUTED and self.draw.random() < 0.5:
            return Selector("compute", name, (self.draw.choice("+-*/%"), self.draw.choice(whole)))
        if kind.name == "int" and self.draw.random() < 0.3:
            return Selector("halved", name)
        if kind.name in _CASTS:
            return Selector("cast", name, self.draw.choice(_CASTS[kind.name]))
        return Selector("column", name)


_PAGES: Final = (0, 0, 0, 1, 2, 3, 7)


class Looks:
    """Draws for one table."""

    def __init__(self, draw: Stream, table: Table, changes: Changes) -> None:
        self.draw, self.table, self._changes = draw, table, changes

    def next(self) -> Look:
        return msgspec.structs.replace(self._look(), way=self._changes.way())

    def _look(self) -> Look:
        if self.draw.random() < 0.08:
            return self._distinct()
        where = self._where()
        named = named_keys(self.table, where)
        single = named is not None and all(len(options) == 1 for options in named)
        clustering = self.table.of("clustering")
        group = 0
        if self.draw.random() < 0.12:
            group = self.draw.randint(
                len(self.table.of("partition")), len(self.table.of("partition", "clustering"))
            )
        backward = bool(clustering) and named is not None and self.draw.random() < 0.3
        backward = backward and (single or not group)
        as_json = (
            not group and self.draw.random() < 0.1 and all(kinds.jsonable(c.kind) for c in self.table.columns)
        )
        by_index = any(r.columns[0] in self.table.indexed for r in where)
        order = 0
        if backward or (clustering and named is not None and not group and self.draw.random() < 0.2):
            order = self.draw.randint(1, len(clustering))
        if by_index:
            # An index asks for single partitions or all, and turns nothing round.
            where = tuple(self._unique(relation) for relation in where)
            backward, order = False, 0
        selectors = () if as_json else Selectors(self.draw, self.table).some(group=group)
        if order and not single and any(selector.divides for selector in selectors):
            # All rows are computed before they are put in order.
            selectors = ()
        if by_index and selectors:
            selectors += (Selector("column", self.table.of("regular")[0].name),)
        # One value between IN's brackets is named by =, but a list of one is not: only one of them has pages.
        lone = any(r.op == "IN" and len(r.value) == 1 for r in where)
        aggregates = any(selector.how in AGGREGATES for selector in selectors)
        needed = needs_filtering(self.table, where)
        return Look(
            selectors=selectors,
            where=where,
            backward=backward,
            order=order,
            group=group,
            as_json=as_json,
            limit=self.draw.choice((0, 0, 1, 2, 5)) if self.draw.random() < 0.95 else UNSET,
            per_partition=self.draw.choice((0, 0, 0, 1, 2)) if group or not aggregates else 0,
            filtering=by_index or self.draw.random() < (0.95 if needed else 0.1),
            page_rows=0
            if order and (lone or (not single and self.draw.random() < 0.9))
            else self.draw.choice(_PAGES),
        )

    def _distinct(self) -> Look:
        names = [Selector("column", c.name) for c in self.table.of("partition")]
        names += [Selector("column", c.name) for c in self.table.of("static") if self.draw.random() < 0.5]
        where = self._partition() if self.draw.random() < 0.5 else ()
        fit = [c for c in self.table.of("static") if not c.kind.is_cells and c.name not in self.table.indexed]
        if fit and self.draw.random() < 0.3:
            column = self.draw.choice(fit)
            where += (Relation((column.name,), "=", self._changes.one(column)),)
        return Look(
            selectors=tuple(names),
            where=where,
            distinct=True,
            group=len(self.table.of("partition")) if self.draw.random() < 0.15 else 0,
            limit=self.draw.choice((0, 0, 1, 2)),
            filtering=needs_filtering(self.table, where),
            page_rows=self.draw.choice(_PAGES),
        )

    def _unique(self, relation: Relation) -> Relation:
        if relation.op != "IN" or self.table.column(relation.columns[0]).role != "partition":
            return relation
        return Relation(relation.columns, "=", self._changes.one(self.table.column(relation.columns[0])))

    # ---- restrictions

    def _where(self) -> tuple[Relation, ...]:
        chance = self.draw.random()
        where = () if chance < 0.2 else self._partition()
        if self.table.of("clustering") and self.draw.random() < 0.6:
            where += self._clustering()
        if self.draw.random() < (0.3 if self.table.indexes else 0.15):
            where += self._filters()
        return where

    def _partition(self) -> tuple[Relation, ...]:
        columns = self.table.of("partition")
        chance = self.draw.random()
        if chance < 0.12:
            return self._tokens()
        found = list(self._changes.equals("partition"))
        if chance < 0.35:
            place = self.draw.randrange(len(columns))
            found[place] = self._changes.in_some(columns[place])
        if chance > 0.93 and len(columns) > 1:
            del found[self.draw.randrange(len(columns))]
        return tuple(found)

    def _tokens(self) -> tuple[Relation, ...]:
        bounds = sorted((self._token(), self._token()), key=lambda bound: bound[0])
        low, high = self.draw.choice((">", ">=")), self.draw.choice(("<", "<="))
        names = tuple(column.name for column in self.table.of("partition"))
        wanted = self.draw.choice(((low, None), (None, high), (low, high), (low, high), ("=", None)))
        pairs = zip(wanted, bounds, strict=True)
        return tuple(
            Relation(names, op, at, token=True, key=key) for op, (at, key) in pairs if op is not None
        )

    def _token(self) -> tuple[int, Any]:
        """Any, or that of a key, which may stand for it."""
        if self.draw.random() < 0.4:
            return self.draw.randrange(-(1 << 63), 1 << 63), None
        key = tuple(self._changes.one(column) for column in self.table.of("partition"))
        return Content(self.table).token(key), key if self.draw.random() < 0.5 else None

    def _clustering(self) -> tuple[Relation, ...]:
        columns = self.table.of("clustering")
        if self.draw.random() < 0.06:
            return (Relation((columns[-1].name,), "=", self._changes.one(columns[-1])),)
        if columns[0].kind.name in ("list", "set") and self.draw.random() < 0.1:
            return (Relation((columns[0].name,), "CONTAINS", self._changes.one(columns[0])[0]),)
        whole = self.draw.randint(0, len(columns))
        found: list[Relation] = []
        for column in columns[:whole]:
            value = self._changes.one(column)
            found.append(
                self._changes.in_some(column)
                if self.draw.random() < 0.2
                else Relation((column.name,), "=", value)
            )
        rest = columns[whole:]
        if not rest or self.draw.random() < 0.2:
            return tuple(found)
        if self.draw.random() < 0.2:
            return (*found, self._several(rest))
        return (*found, *self._changes.slice(rest))

    def _several(self, columns: tuple[Column, ...]) -> Relation:
        chosen = columns[: self.draw.randint(1, len(columns))]
        if len(chosen) == 1:
            return self._changes.in_some(chosen[0])
        return self._changes.several(chosen)

    def _filters(self) -> tuple[Relation, ...]:
        fit = self.table.of("static", "regular")
        if not fit:
            return ()
        column = self.draw.choice(fit)
        if self.table.indexes and self.draw.random() < 0.7:
            column = self.table.column(self.draw.choice(self.table.indexed))
        kind, value = column.kind, self._changes.one(column)
        if kind.name in ("list", "set", "map") and (kind.is_cells or self.draw.random() < 0.5):
            if kind.name != "map":
                return (Relation((column.name,), "CONTAINS", value[0]),)
            key, held = value[0]
            if kind.is_cells and self.draw.random() < 0.3:
                return (Relation((column.name,), "=", held, key=key),)
            chosen = self.draw.choice((("CONTAINS", held), ("CONTAINS KEY", key)))
            return (Relation((column.name,), *chosen),)
        if kind.is_cells:
            return ()
        ops = ("=",) if kind.name in UNORDERED else ("=", "=", "<", "<=", ">", ">=")
        return (Relation((column.name,), self.draw.choice(ops), value),)
