"""SELECT: as text, and as what it must answer.

Invariant: the answer is computed row by row over everything that is visible; no plan, no index, no page.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from lockstep.cql.wire.messages import Unset
from lockstep.sim.fuzz.binding import INT, Say
from lockstep.sim.fuzz.changes import INVALID, Answer, Moment
from lockstep.sim.fuzz.facts import Content, Facts
from lockstep.sim.fuzz.relations import Relation, holds, where_text
from lockstep.sim.fuzz.selecting import AGGREGATES, IMPOSSIBLE, Found, Selector, aggregated, single
from lockstep.sim.fuzz.tables import Column, Table, rank

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
