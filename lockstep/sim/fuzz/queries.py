"""SELECT: as text, and as what it must answer.

Invariant: the answer is computed row by row over everything that is visible; no plan, no index, no page. A
selected value is computed from one row, or from the rows of one group, alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, Final

import msgspec

from lockstep.cql.wire.messages import Unset
from lockstep.sim.fuzz import kinds
from lockstep.sim.fuzz.changes import INVALID, Answer, Moment
from lockstep.sim.fuzz.facts import Cell, Content, Facts, Relation, Seen, holds, where_text
from lockstep.sim.fuzz.kinds import INT, WHOLE, Kind, Say
from lockstep.sim.fuzz.tables import KEYSPACE, Column, Table, rank, star

AGGREGATES: Final = ("rows", "count", "min", "max", "sum", "avg", "given")
#: What asks for times of cells.
TIMES: Final = ("writetime", "ttl", "maxwritetime")
#: Functions of collections.
OF_COLLECTIONS: Final = ("collection_count", "collection_min", "collection_max", "map_keys", "map_values")
#: Functions of users: half of a number, and how many are not null.
FUNCTIONS: Final = (
    f"CREATE FUNCTION {KEYSPACE}.halved (x int) RETURNS NULL ON NULL INPUT RETURNS int LANGUAGE python "
    "AS 'return x // 2'",
    f"CREATE FUNCTION {KEYSPACE}.one_more (held int, x int) CALLED ON NULL INPUT RETURNS int LANGUAGE python "
    "AS 'return held + (x is not None)'",
    f"CREATE AGGREGATE {KEYSPACE}.given (int) SFUNC one_more STYPE int INITCOND 0",
)

_OF_USERS: Final = ("halved", "given")


class _Impossible:
    """Of what cannot be computed."""


IMPOSSIBLE: Final = _Impossible()


class Selector(msgspec.Struct, frozen=True):
    """`how`: column, one of TIMES, token, cast (to type `key`), element, field, slice (from, to), compute
    (operator, other column), halved, or one of OF_COLLECTIONS and AGGREGATES. `part` of TIMES is element,
    field or slice, as `key` says."""

    how: str
    column: str = ""
    key: Any = None
    part: str = ""

    @property
    def divides(self) -> bool:
        return self.how == "compute" and self.key[0] in "/%"

    def text(self, table: Table) -> str:
        if self.how in ("rows", "token"):
            keys = ", ".join(c.name for c in table.of("partition"))
            return "count(*)" if self.how == "rows" else f"token({keys})"
        if self.how == "cast":
            return f"CAST({self.column} AS {self.key})"
        if self.how == "compute":
            return f"{self.column} {self.key[0]} {self.key[1]}"
        place = self.column + _place(self.part or self.how, table.column(self.column).kind, self.key)
        if self.how in ("column", "element", "field", "slice"):
            return place
        return f"{f'{KEYSPACE}.' if self.how in _OF_USERS else ''}{self.how}({place})"


def _place(part: str, kind: Kind, key: Any) -> str:
    if part == "field":
        return f".{kind.fields[key]}"
    if part == "element":
        return f"[{kinds.literal(kind.parts[0], key)}]"
    if part == "slice":
        low, high = ("" if bound is None else kinds.literal(kind.parts[0], bound) for bound in key)
        return f"[{low}..{high}]"
    return ""


class Found(msgspec.Struct):
    """One row of a partition as the selection sees it; `place` is the partition's turn."""

    place: int
    values: dict[str, Any]
    seen: tuple[Seen, ...]
    token: int
    now_s: int

    def of(self, name: str) -> Any:
        return self.values.get(name)

    def cells(self, name: str) -> list[tuple[Any, Cell]]:
        return next((seen.cells[name] for seen in self.seen if seen.cells.get(name)), [])


def single(selectors: Sequence[Selector], row: Found, table: Table) -> tuple[Any, ...]:
    if not selectors:
        return tuple(row.of(name) for name in star(table))
    return tuple(_selected(selector, row, table) for selector in selectors)


def aggregated(selectors: Sequence[Selector], rows: list[Found], table: Table) -> tuple[Any, ...]:
    return tuple(_aggregate(selector, rows, table) for selector in selectors)


def _selected(selector: Selector, row: Found, table: Table) -> Any:
    how, held = selector.how, row.of(selector.column)
    if how == "token":
        return row.token
    if how in TIMES:
        return _times(selector, row, table.column(selector.column).kind)
    if held is None or how == "column":
        return held
    kind = table.column(selector.column).kind
    if how == "cast":
        return _cast(held, kind, selector.key)
    if how == "halved":
        return held // 2
    if how == "compute":
        return _computed(
            held, kind, selector.key[0], row.of(selector.key[1]), table.column(selector.key[1]).kind
        )
    if how in OF_COLLECTIONS:
        return _of_collection(how, kind, held)
    if how == "field":
        return held[selector.key]
    inside = [pair for pair in _pairs(kind, held) if _is_inside(how, kind, pair[0], selector.key)]
    if how == "element":
        return inside[0][1] if inside else None
    if not inside and not kind.frozen:
        return None
    return tuple(pair if kind.name == "map" else pair[0] for pair in inside)


def _pairs(kind: Kind, held: Any) -> list[tuple[Any, Any]]:
    return list(held) if kind.name == "map" else [(element, element) for element in held]


def _is_inside(part: str, kind: Kind, key: Any, wanted: Any) -> bool:
    at = kinds.order(kind.parts[0], key)
    if part == "element":
        return bool(at == kinds.order(kind.parts[0], wanted))
    low, high = wanted
    if low is not None and at < kinds.order(kind.parts[0], low):
        return False
    return high is None or bool(at <= kinds.order(kind.parts[0], high))


# ---- times


def _times(selector: Selector, row: Found, kind: Kind) -> Any:
    held, cells = row.of(selector.column), row.cells(selector.column)
    if held is None:
        return None
    if not kind.is_cells:
        return _time(selector.how, cells[0][1], row.now_s) if _is_there(selector, kind, held) else None
    if selector.part == "field" or (selector.part == "" and kind.name == "udt"):
        by_place = dict(cells)
        found = [by_place.get(place) for place in range(len(kind.parts))]
        if selector.part:
            found = [found[selector.key]]
    elif selector.part:
        found = [cell for path, cell in cells if _is_inside(selector.part, kind, path, selector.key)]
    else:
        found = [cell for _, cell in cells]
    told = [None if cell is None else _time(selector.how, cell, row.now_s) for cell in found]
    if selector.how == "maxwritetime":
        return max((time for time in told if time is not None), default=None)
    if selector.part in ("field", "element"):
        return told[0] if told else None
    return tuple(told) or None


def _is_there(selector: Selector, kind: Kind, held: Any) -> bool:
    """Whether a value that is one cell has such a part."""
    if selector.part == "field":
        return held[selector.key] is not None
    if not selector.part:
        return True
    return any(_is_inside(selector.part, kind, key, selector.key) for key, _ in _pairs(kind, held))


def _time(how: str, cell: Cell, now_s: int) -> int | None:
    if how != "ttl":
        return cell.stamp
    return cell.ends_s - now_s if cell.ttl_s else None


# ---- computed


def _wrapped(value: int, name: str) -> int:
    if name == "varint":
        return value
    bits = WHOLE[name]
    return (value + (1 << (bits - 1))) % (1 << bits) - (1 << (bits - 1))


def _cast(held: Any, kind: Kind, target: str) -> Any:
    if target == "text":
        return str(held)
    if target == "decimal":
        return Decimal(held)
    if target == "double":
        return float(held)
    if isinstance(held, float):
        # Too much is as much as an int or a bigint holds; from there it wraps.
        bits = 64 if target == "bigint" else 32
        held = min(max(int(held), -(1 << (bits - 1))), (1 << (bits - 1)) - 1)
    return _wrapped(held, target)


def _computed(one: int, kind: Kind, sign: str, other: int | None, other_kind: Kind) -> Any:
    if other is None:
        return None
    if sign in "/%" and other == 0:
        return IMPOSSIBLE
    cut = abs(one) // abs(other) * (1 if (one < 0) == (other < 0) else -1) if sign in "/%" else 0
    results: dict[str, Callable[[], int]] = {
        "+": lambda: one + other,
        "-": lambda: one - other,
        "*": lambda: one * other,
        "/": lambda: cut,
        "%": lambda: one - cut * other,
    }
    return _wrapped(results[sign](), wider(kind.name, other_kind.name))


def wider(one: str, other: str) -> str:
    if "varint" in (one, other):
        return "varint"
    return max(one, other, key=WHOLE.__getitem__)


def _of_collection(how: str, kind: Kind, held: Any) -> Any:
    if how == "collection_count":
        return len(held)
    if how == "map_keys":
        return tuple(key for key, _ in held)
    if how == "map_values":
        return tuple(value for _, value in held)
    pick = min if how == "collection_min" else max
    return pick(held, key=lambda element: kinds.order(kind.parts[0], element), default=None)


def _aggregate(selector: Selector, rows: list[Found], table: Table) -> Any:
    how = selector.how
    if how not in AGGREGATES:
        return _selected(selector, rows[0], table) if rows else None
    if how == "rows":
        return len(rows)
    held = [row.of(selector.column) for row in rows if row.of(selector.column) is not None]
    if how in ("count", "given"):
        return len(held)
    kind = table.column(selector.column).kind
    if how in ("min", "max"):
        pick = min if how == "min" else max
        return pick(held, key=lambda value: kinds.order(kind, value), default=None)
    total = sum(held)
    if how == "sum":
        return _wrapped(total, kind.name)
    count = max(len(held), 1)
    return total // count if total >= 0 else -(-total // count)


FUNCTION_FAILED: Final = 0x1400


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """`group`: how many columns of the primary key group; `order`: how many of the clustering are named by
    ORDER BY; `backward`: against the order of rows."""

    selectors: tuple[Selector, ...]
    where: tuple[Relation, ...] = ()
    backward: bool = False
    order: int = 0
    limit: int | Unset = 0
    per_partition: int = 0
    distinct: bool = False
    group: int = 0
    as_json: bool = False
    filtering: bool = False
    page_rows: int = 0
    way: int = 0

    def text(self, table: Table, say: Say) -> str:
        chosen = ", ".join(selector.text(table) for selector in self.selectors) or "*"
        parts = [f"SELECT {'JSON ' if self.as_json else ''}{'DISTINCT ' if self.distinct else ''}{chosen}"]
        parts.append(f" FROM {table.path}{where_text(table, self.where, say)}")
        if self.group:
            names = [c.name for c in table.of("partition", "clustering")]
            parts.append(f" GROUP BY {', '.join(names[: self.group])}")
        if self.order:
            named = table.of("clustering")[: self.order]
            orders = [f"{c.name} {'ASC' if c.reversed is self.backward else 'DESC'}" for c in named]
            parts.append(f" ORDER BY {', '.join(orders)}")
        parts.append(f" PER PARTITION LIMIT {say(INT, self.per_partition)}" if self.per_partition else "")
        parts.append(f" LIMIT {say(INT, self.limit)}" if self.limit else "")
        parts.append(" ALLOW FILTERING" if self.filtering else "")
        return "".join(parts)

    def apply(self, content: Content, moment: Moment) -> Answer:
        if not self.filtering and needs_filtering(content.table, self.where):
            return Answer(INVALID)
        if self.order and self._cannot_turn(content.table):
            return Answer(INVALID)
        rows = _Reading(self, content, moment.now_s).rows()
        table = content.table
        if any(selector.how in AGGREGATES for selector in self.selectors) and not self.group:
            return _answer([aggregated(self.selectors, rows, table)])
        if self.group:
            rows_of = self._grouped(rows, table)
        else:
            if self.order:
                rows = _ordered(rows, table.of("clustering")[: self.order], backward=self.backward)
            rows_of = [(row, single(self.selectors, row, table)) for row in rows]
        rows_of = _per_partition(rows_of, 1 if self.distinct else self.per_partition)
        return _answer(
            [values for _, values in rows_of][: None if isinstance(self.limit, Unset) else self.limit or None]
        )

    def _cannot_turn(self, table: Table) -> bool:
        """ORDER BY asks for one partition, or for several on one page."""
        if named_keys(table, self.where) is None:
            return True
        names = [column.name for column in table.of("partition")]
        several = any(r.op == "IN" and r.columns[0] in names for r in self.where)
        one_row = not self.group and any(selector.how in AGGREGATES for selector in self.selectors)
        return several and self.page_rows > 0 and not one_row

    def _grouped(self, rows: list[Found], table: Table) -> list[tuple[Found, tuple[Any, ...]]]:
        columns = table.of("partition", "clustering")[: self.group]
        groups: list[tuple[Any, list[Found]]] = []
        for row in rows:
            name = (row.place, rank(columns, [row.of(column.name) for column in columns]))
            if not groups or groups[-1][0] != name:
                groups.append((name, []))
            groups[-1][1].append(row)
        return [(members[0], aggregated(self.selectors, members, table)) for _, members in groups]


class _Reading:
    """Finds the rows that WHERE names, in their order."""

    def __init__(self, look: Look, content: Content, now_s: int) -> None:
        self.look, self.content, self.now_s = look, content, now_s
        self.table = content.table
        self.roles = {self.table.column(name).role for r in look.where for name in r.columns if not r.token}

    def rows(self) -> list[Found]:
        found: list[Found] = []
        for place, facts in enumerate(self._partitions()):
            rows = self._of(place, facts)
            found += reversed(rows) if self.look.backward else rows
        return found

    def _partitions(self) -> list[Facts]:
        columns = self.table.of("partition")
        options = named_keys(self.table, self.look.where)
        if options is None:
            return self.content.in_token_order()
        keys = sorted(itertools.product(*options), key=lambda key: rank(columns, key))
        unique = {self.content.key_bytes(key): key for key in keys}
        return [self.content.partition(key) for key in unique.values()]

    def _of(self, place: int, facts: Facts) -> list[Found]:
        static = self.content.static(facts, self.now_s)
        token = self.content.token(facts.key)
        names = [column.name for column in self.table.of("clustering")]
        keyed = dict(zip((c.name for c in self.table.of("partition")), facts.key, strict=True))
        found = []
        for clustering, seen in self.content.rows(facts, self.now_s):
            values = {**keyed, **dict(zip(names, clustering, strict=True)), **static.values, **seen.values}
            found.append(Found(place, values, (seen, static), token, self.now_s))
        if not found and static.live and not {"clustering", "regular"} & self.roles:
            found.append(Found(place, {**keyed, **static.values}, (static,), token, self.now_s))
        return [row for row in found if self._wanted(row)]

    def _wanted(self, row: Found) -> bool:
        return all(holds(self.table, relation, row.of, row.token) for relation in self.look.where)


def _answer(rows: Sequence[tuple[Any, ...]]) -> Answer:
    if any(value is IMPOSSIBLE for row in rows for value in row):
        return Answer(FUNCTION_FAILED)
    return Answer(rows=tuple(rows))


def _ordered(rows: list[Found], columns: Sequence[Column], *, backward: bool) -> list[Found]:
    """Rows of all partitions together, those without clustering before all; of equal ones those of the first
    partition. Or the other way round, but for the equal ones."""
    bare = [row for row in rows if row.of(columns[0].name) is None]
    whole = [row for row in rows if row.of(columns[0].name) is not None]
    ranks = [rank(columns, [row.of(column.name) for column in columns]) for row in whole]
    if backward:
        return [whole[i] for i in sorted(range(len(whole)), key=lambda i: _Descending(ranks[i]))] + bare
    return bare + [whole[i] for i in sorted(range(len(whole)), key=ranks.__getitem__)]


class _Descending:
    __slots__ = ("rank",)

    def __init__(self, rank: Any) -> None:
        self.rank = rank

    def __lt__(self, other: _Descending) -> bool:
        return bool(other.rank < self.rank)


def named_keys(table: Table, where: Sequence[Relation]) -> list[tuple[Any, ...]] | None:
    """For each column of the partition key its possible values; None unless all are named by = or IN."""
    options = []
    for column in table.of("partition"):
        of = [r for r in where if r.columns == (column.name,) and not r.token and r.op in ("=", "IN")]
        if not of:
            return None
        options.append(tuple(of[0].value) if of[0].op == "IN" else (of[0].value,))
    return options


def needs_filtering(table: Table, where: Sequence[Relation]) -> bool:
    """Whether rows must be looked at that are not answered."""
    by_role: dict[str, list[Relation]] = {}
    for relation in where:
        role = "token" if relation.token else table.column(relation.columns[0]).role
        by_role.setdefault(role, []).append(relation)
    if by_role.get("regular") or by_role.get("static"):
        return True
    if named_keys(table, where) is None:
        return bool(by_role.get("partition") or by_role.get("clustering"))
    names = [column.name for column in table.of("clustering")]
    next_free, closed = 0, False
    for relation in sorted(by_role.get("clustering", ()), key=lambda r: names.index(r.columns[0])):
        first = names.index(relation.columns[0])
        sliced = relation.op in ("<", "<=", ">", ">=")
        if relation.op.startswith("CONTAINS") or relation.key is not None:
            return True
        if sliced and closed and first == next_free:
            continue
        if closed or first != next_free:
            return True
        closed = sliced
        next_free = first if sliced else first + len(relation.columns)
    return False


def _per_partition(
    rows: list[tuple[Found, tuple[Any, ...]]], limit: int
) -> list[tuple[Found, tuple[Any, ...]]]:
    if not limit:
        return rows
    counts: dict[int, int] = {}
    kept = []
    for row, values in rows:
        counts[row.place] = counts.get(row.place, 0) + 1
        if counts[row.place] <= limit:
            kept.append((row, values))
    return kept
