"""Random selections of a table's rows.

Invariant: what is drawn is allowed for the types of its columns.
"""

from __future__ import annotations

from typing import Any, Final

from lockstep.sim.fuzz import kinds
from lockstep.sim.fuzz.selecting import AGGREGATES, OF_COLLECTIONS, TIMES, Selector
from lockstep.sim.fuzz.tables import Column, Table
from lockstep.sim.streams import Stream

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
