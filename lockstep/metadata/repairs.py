"""Repairs under way and lately ended, and what was found equal on all its replicas since when.

Invariants. A repair is running until an entry ends it; its session is open as long as it runs and the node
that drives it has not left. What is recorded of a table is sorted, disjoint and joined where it is equal, and
a range is recorded only when every replica of it took part and none changed meanwhile.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Final

import msgspec

from lockstep.metadata.part import Item, Part, collected, digest_of, digest_of_each
from lockstep.schema.model import Keyspace
from lockstep.values.ids import NodeId
from lockstep.values.limits import REPAIRED_RANGES_KEPT_MAX, REPAIRS_ENDED_KEPT_MAX
from lockstep.values.tokens import Range


class RepairState(enum.StrEnum):
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


class RepairPart(msgspec.Struct, frozen=True, array_like=True):
    """What is repaired of one keyspace, which is in `group`: these tables, in these ranges (sorted,
    disjoint)."""

    keyspace: str
    group: int
    tables: tuple[int, ...]
    ranges: tuple[Range, ...]


def parts_by_group(keyspace: Keyspace, tables: Iterable[int], ranges: tuple[Range, ...]) -> list[RepairPart]:
    """These tables of the keyspace in the ranges, a part for each placement group."""
    wanted = frozenset(tables)
    listed = (
        (group, tuple(table.id for table in found if table.id in wanted))
        for group, found in keyspace.groups.items()
    )
    return [RepairPart(keyspace.name, group, ids, ranges) for group, ids in listed if ids]


class Repair(msgspec.Struct, frozen=True, array_like=True, dict=True):
    """`driver` is the node that compares and sends. `nodes`: only these replicas take part; empty: all.

    `began_s` is the moment that all participants judge by, `run` counts the driver's starts. `reason` says
    why it did not succeed. `purpose` is empty of a repair; others hold tables' ranges in the same way,
    compare nothing and record nothing.
    """

    id: int
    driver: NodeId
    parts: tuple[RepairPart, ...]
    nodes: tuple[NodeId, ...]
    incremental: bool
    began_s: int
    run: int = 0
    began_epoch: int = 0
    state: RepairState = RepairState.RUNNING
    reason: str = ""
    ended_epoch: int = 0
    ended_s: int = 0
    purpose: str = ""

    @property
    def session_id(self) -> str:
        return f"{self.purpose or 'repair'}-{self.id}"

    def title(self) -> str:
        return f"{self.purpose or 'repair'} {self.id} (of {', '.join(part.keyspace for part in self.parts)})"

    def overlap(self, other: RepairPart) -> Range | None:
        """Tokens of a table that both are about."""
        for part in self.parts:
            if set(part.tables).isdisjoint(other.tables):
                continue
            for mine in part.ranges:
                for wanted in other.ranges:
                    shared = mine.intersection(wanted)
                    if shared is not None:
                        return shared
        return None


class Repaired(msgspec.Struct, frozen=True, array_like=True):
    """The replicas of the range were made equal by a repair that began at `epoch` and `at_s`. All that was
    written before `before_s` has reached them (0: that is not known)."""

    range: Range
    at_s: int
    before_s: int
    epoch: int


class TableRepairs(msgspec.Struct, frozen=True, array_like=True, dict=True):
    table: int
    ranges: tuple[Repaired, ...]


class Repairs(msgspec.Struct, frozen=True, array_like=True, dict=True):
    """`running` and `ended` are sorted by id, `tables` by table."""

    running: tuple[Repair, ...] = ()
    ended: tuple[Repair, ...] = ()
    tables: tuple[TableRepairs, ...] = ()
    next_id: int = 1

    @cached_property
    def by_session(self) -> dict[str, Repair]:
        return {repair.session_id: repair for repair in self.running}

    @cached_property
    def by_table(self) -> dict[int, tuple[Repaired, ...]]:
        return {entry.table: entry.ranges for entry in self.tables}

    def find(self, repair_id: int) -> Repair | None:
        found = (repair for repair in (*self.running, *self.ended) if repair.id == repair_id)
        return next(found, None)

    def begun(self, repair: Repair) -> Repairs:
        """With one more; its id is the next one."""
        assert repair.id == self.next_id, "ids are never given twice"
        assert repair.state is RepairState.RUNNING and not repair.ended_epoch, "what begins has not ended"
        return msgspec.structs.replace(self, running=(*self.running, repair), next_id=repair.id + 1)

    def without(self, ended: Repair) -> Repairs:
        """The running one of this id has become `ended`."""
        running = tuple(repair for repair in self.running if repair.id != ended.id)
        assert len(running) + 1 == len(self.running), "a repair ends once"
        kept = (*self.ended, ended)[-REPAIRS_ENDED_KEPT_MAX:]
        return msgspec.structs.replace(self, running=running, ended=kept)

    def with_repaired(self, tables: Mapping[int, Sequence[Repaired]], known: Iterable[int]) -> Repairs:
        """With more recorded, and without tables that are not `known` any more."""
        found = {table: self.by_table.get(table, ()) for table in known if table in self.by_table}
        for table, more in tables.items():
            ranges = found.get(table, ())
            for one in more:
                ranges = recorded(ranges, one)
            found[table] = ranges
        listed = tuple(TableRepairs(table, found[table]) for table in sorted(found))
        return msgspec.structs.replace(self, tables=listed)


NO_REPAIRS = Repairs()


def recorded(known: Sequence[Repaired], new: Repaired) -> tuple[Repaired, ...]:
    """The list with `new` in place of what it covers; bounded by joining neighbours at the older one."""
    pieces = [new]
    for old in known:
        if not old.range.intersects(new.range):
            pieces.append(old)
            continue
        if old.range.left < new.range.left:
            pieces.append(msgspec.structs.replace(old, range=Range(old.range.left, new.range.left)))
        if new.range.right < old.range.right:
            pieces.append(msgspec.structs.replace(old, range=Range(new.range.right, old.range.right)))
    pieces.sort(key=lambda one: one.range)
    pairs = itertools.pairwise(pieces)
    assert all(one.range.right <= two.range.left for one, two in pairs), "what is recorded is disjoint"
    joined = _joined(pieces, any_age=False)
    return joined if len(joined) <= REPAIRED_RANGES_KEPT_MAX else _joined(joined, any_age=True)


def _joined(pieces: Sequence[Repaired], *, any_age: bool) -> tuple[Repaired, ...]:
    joined: list[Repaired] = []
    for piece in pieces:
        last = joined[-1] if joined else None
        adjacent = last is not None and last.range.right == piece.range.left
        if last is not None and adjacent and (any_age or _facts(last) == _facts(piece)):
            older = [min(pair) for pair in zip(_facts(last), _facts(piece), strict=True)]
            joined[-1] = Repaired(Range(last.range.left, piece.range.right), *older)
        else:
            joined.append(piece)
    assert sum(one.range.right - one.range.left for one in joined) == sum(
        piece.range.right - piece.range.left for piece in pieces
    ), "no token is lost by joining"
    return tuple(joined)


def _facts(one: Repaired) -> tuple[int, int, int]:
    return (one.at_s, one.before_s, one.epoch)


def is_equal_since(known: Sequence[Repaired], wanted: Range, epoch: int) -> bool:
    """Whether all replicas of the range were made equal by repairs that began after `epoch`."""
    found = oldest(known, wanted)
    return found is not None and found.epoch > epoch


def oldest(known: Sequence[Repaired], wanted: Range) -> Repaired | None:
    """What is recorded of all of `wanted`: the oldest facts; None when a part of it never was repaired."""
    inside = [one for one in known if one.range.intersects(wanted)]
    reached = wanted.left
    for one in inside:
        if one.range.left > reached:
            return None
        reached = one.range.right
    if not inside or reached < wanted.right:
        return None
    assert inside[0].range.left <= wanted.left, "all of it is recorded"
    return Repaired(wanted, *(min(facts) for facts in zip(*map(_facts, inside), strict=True)))


def joined_ranges(ranges: Iterable[Range]) -> tuple[Range, ...]:
    """Sorted, and one where two touch or overlap."""
    joined: list[Range] = []
    for range_ in sorted(ranges):
        if joined and range_.left <= joined[-1].right:
            joined[-1] = Range(joined[-1].left, max(joined[-1].right, range_.right))
        else:
            joined.append(range_)
    assert all(one.right < two.left for one, two in itertools.pairwise(joined)), "what is left is apart"
    return tuple(joined)


def _of_items(items: Sequence[Item]) -> Repairs:
    lists: tuple[list[Any], ...] = ([], [], [])
    for kind, value in items:
        lists[kind].append(value)
    repairs, tables, next_id = lists
    return Repairs(
        tuple(one for one in repairs if one.state is RepairState.RUNNING),
        tuple(one for one in repairs if one.state is not RepairState.RUNNING),
        tuple(tables),
        *next_id,
    )


def _items(value: Repairs) -> Iterator[Item]:
    for repair in (*value.ended, *value.running):
        yield 0, repair
    for table in value.tables:
        yield 1, table
    yield 2, value.next_id


REPAIRS: Final[Part[Repairs]] = Part(
    name="repairs",
    number=13,
    empty=NO_REPAIRS,
    items=_items,
    kinds=(Repair, TableRepairs, int),
    builder=collected(_of_items),
    digest=lambda value: digest_of(
        (
            digest_of_each(value.running, value.next_id),
            digest_of_each(value.ended),
            digest_of_each(value.tables),
        )
    ),
)
