"""What a SELECT tells of its rows: text, and values.

Invariant: a value is computed from what is visible in one row, or in the rows of one group, alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, Final

import msgspec

from lockstep.sim.fuzz import kinds
from lockstep.sim.fuzz.facts import Cell, Seen
from lockstep.sim.fuzz.kinds import WHOLE, Kind
from lockstep.sim.fuzz.tables import KEYSPACE, Table, star

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
