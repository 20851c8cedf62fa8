"""Random tables and the values that statements on them use.

Invariant: every column draws from a few values of its own, so that statements meet.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from lockstep.sim.fuzz.kinds import Kind, draw_kind, draw_scalar, draw_value, frozen, order, text, wire
from lockstep.sim.runtime.streams import Stream

KEYSPACE: Final = "f"
#: (part of a key, values of it): few partitions with few rows each.
_POOL: Final = {"partition": 3, "clustering": 4, "static": 4, "regular": 4}


class Column(msgspec.Struct, frozen=True):
    """`role`: partition, clustering, static or regular."""

    name: str
    kind: Kind
    role: str
    reversed: bool = False
    pool: tuple[Any, ...] = ()


class View(msgspec.Struct, frozen=True):
    """A materialized view. `shown` are its columns, () all of them; `falling` lie in descending order."""

    name: str
    partition: tuple[str, ...]
    clustering: tuple[str, ...]
    shown: tuple[str, ...] = ()
    falling: tuple[str, ...] = ()

    def statement(self, path: str) -> str:
        key = [*self.partition, *self.clustering]
        where = " AND ".join(f"{name} IS NOT NULL" for name in key)
        clustering = "".join(f", {name}" for name in self.clustering)
        orders = [f"{name} {'DESC' if name in self.falling else 'ASC'}" for name in self.clustering]
        ending = f" WITH CLUSTERING ORDER BY ({', '.join(orders)})" if orders else ""
        return (
            f"CREATE MATERIALIZED VIEW {KEYSPACE}.{self.name} AS SELECT {', '.join(self.shown) or '*'} "
            f"FROM {path} WHERE {where} PRIMARY KEY (({', '.join(self.partition)}){clustering}){ending}"
        )


class Table(msgspec.Struct, frozen=True):
    """`stamped`: writes carry timestamps; without, nodes give them and conditions (IF) are drawn."""

    name: str
    columns: tuple[Column, ...]
    users: tuple[Kind, ...] = ()
    default_ttl: int = 0
    counters: bool = False
    stamped: bool = True
    #: (column, CUSTOM or nothing): secondary indexes.
    indexes: tuple[tuple[str, bool], ...] = ()
    views: tuple[View, ...] = ()

    def of(self, *roles: str) -> tuple[Column, ...]:
        return tuple(column for column in self.columns if column.role in roles)

    def column(self, name: str) -> Column:
        return next(column for column in self.columns if column.name == name)

    @property
    def path(self) -> str:
        return f"{KEYSPACE}.{self.name}"

    def statements(self) -> tuple[str, ...]:
        """What creates it."""
        users = [
            f"CREATE TYPE {KEYSPACE}.{user.user} ("
            + ", ".join(f"{name} {text(part)}" for name, part in zip(user.fields, user.parts, strict=True))
            + ")"
            for user in self.users
        ]
        columns = ", ".join(
            f"{column.name} {text(column.kind)}{' STATIC' if column.role == 'static' else ''}"
            for column in self.columns
        )
        clustering = self.of("clustering")
        key = ", ".join(column.name for column in self.of("partition"))
        rest = "".join(f", {column.name}" for column in clustering)
        options = [f"default_time_to_live = {self.default_ttl}"] if self.default_ttl else []
        if clustering:
            orders = ", ".join(f"{c.name} {'DESC' if c.reversed else 'ASC'}" for c in clustering)
            options.append(f"CLUSTERING ORDER BY ({orders})")
        ending = f" WITH {' AND '.join(options)}" if options else ""
        create = f"CREATE TABLE {self.path} ({columns}, PRIMARY KEY (({key}){rest})){ending}"
        views = [view.statement(self.path) for view in self.views]
        return (*users, create, *self._index_statements(), *views)

    def _index_statements(self) -> list[str]:
        found = []
        for name, is_custom in self.indexes:
            kind = self.column(name).kind
            target = f"full({name})" if kind.frozen and kind.name in ("list", "set", "map") else name
            custom, using = ("CUSTOM ", " USING 'StorageAttachedIndex'") if is_custom else ("", "")
            found.append(f"CREATE {custom}INDEX ON {self.path} ({target}){using}")
        return found

    @property
    def indexed(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.indexes)


class _Falling:
    """Sorts the other way round."""

    __slots__ = ("key",)

    def __init__(self, key: Any) -> None:
        self.key = key

    def __lt__(self, other: _Falling) -> bool:
        return bool(other.key < self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Falling) and bool(self.key == other.key)

    __hash__ = None  # type: ignore[assignment]


def rank(columns: Sequence[Column], values: Sequence[Any]) -> tuple[Any, ...]:
    """Sorts clusterings, or prefixes of them, as rows lie in a partition."""
    return tuple(
        _Falling(order(column.kind, value)) if column.reversed else order(column.kind, value)
        for column, value in zip(columns, values, strict=False)
    )


def star(table: Table) -> list[str]:
    """What `*` stands for: keys as they are, then static and regular columns by name."""
    fixed = [column.name for column in table.of("partition", "clustering")]
    statics = sorted(column.name for column in table.of("static"))
    return fixed + statics + sorted(column.name for column in table.of("regular"))


def draw_table(draw: Stream, number: int, choice: str = "") -> Table:
    """`choice` keeps to one sort of tables: stamped, clocked or counters."""
    sort = choice or draw.choice(("stamped", "stamped", "stamped", "clocked", "clocked", "counters"))
    users = tuple(_user(draw, f"u{number}_{index}") for index in range(draw.choice((0, 1, 2))))
    columns: list[Column] = []
    for index in range(draw.choice((1, 1, 1, 2))):
        columns.append(_column(draw, f"p{index}", "partition", draw_kind(draw, users, key=True)))
    for index in range(draw.choice((0, 1, 1, 1, 2, 2, 3))):
        kind = draw_kind(draw, users, key=True) if draw.random() < 0.5 else Kind(draw.choice(("int", "text")))
        columns.append(_column(draw, f"c{index}", "clustering", kind, reversed=draw.random() < 0.4))
    clustered = columns[-1].role == "clustering"
    for index in range(draw.choice((0, 0, 1, 2)) if clustered else 0):
        columns.append(_column(draw, f"s{index}", "static", _held(draw, users, sort)))
    for index in range(draw.randint(1, 5)):
        columns.append(_column(draw, f"v{index}", "regular", _held(draw, users, sort)))
    counters = sort == "counters"
    return Table(
        f"t{number}",
        tuple(columns),
        users,
        draw.choice((0, 0, 0, 0, 15)) if not counters else 0,
        counters,
        stamped=sort == "stamped",
        indexes=() if counters else _indexes(draw, columns),
    )


def draw_added(draw: Stream, table: Table, name: str, role: str) -> Column:
    """A column that an altered table gets."""
    return _column(draw, name, role, _held(draw, table.users, "counters" if table.counters else ""))


def _indexes(draw: Stream, columns: Sequence[Column]) -> tuple[tuple[str, bool], ...]:
    fit = [c for c in columns if c.role in ("static", "regular") and _is_indexable(c.kind)]
    if not fit or draw.random() < 0.6:
        return ()
    chosen = draw.sample(fit, min(len(fit), draw.randint(1, 2)))
    return tuple((c.name, draw.random() < 0.5 and not _has_blob(c.kind)) for c in chosen)


def _has_blob(kind: Kind) -> bool:
    """No index of the custom class takes them."""
    return kind.name == "blob" or any(_has_blob(part) for part in kind.parts)


def _is_indexable(kind: Kind) -> bool:
    if kind.is_cells:
        return kind.name != "udt" and all(not part.parts and part.name != "duration" for part in kind.parts)
    return not kind.parts and kind.name != "duration"


def _held(draw: Stream, users: tuple[Kind, ...], sort: str) -> Kind:
    if sort == "counters":
        return Kind("counter")
    return Kind("int") if draw.random() < 0.3 else draw_kind(draw, users)


def _user(draw: Stream, name: str) -> Kind:
    parts = tuple(
        frozen(draw_kind(draw, (), depth=1)) if draw.random() < 0.2 else draw_scalar(draw)
        for _ in range(draw.randint(1, 3))
    )
    return Kind("udt", parts, fields=tuple(f"f{index}" for index in range(len(parts))), user=name)


def _column(draw: Stream, name: str, role: str, kind: Kind, *, reversed: bool = False) -> Column:
    found: dict[bytes, Any] = {}
    for _ in range(3 * _POOL[role]):
        value = draw_value(draw, kind)
        if role == "partition" and not wire(kind, value):
            continue
        found[wire(kind, value)] = value
        if len(found) >= _POOL[role]:
            break
    if not found:
        found[b""] = _filled(draw, kind)
    return Column(name, kind, role, reversed, tuple(found.values()))


def _filled(draw: Stream, kind: Kind) -> Any:
    while not wire(kind, value := draw_value(draw, kind)):
        pass
    return value
