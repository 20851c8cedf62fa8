"""Tablet maps as a part of the metadata: which placement groups are tablets of one table, and what their
rings do not say of them.

The replicas of tablets lie in the placements, under the id of the group, as those of rings do. Invariant:
exactly the groups that are a table's own have an entry here; a table that lies together with another one, as
a view with its base's partition key and a log of changes do, has that one's group.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Final

import msgspec
from rpds import HashTrieMap

from lockstep.metadata.log.comparison import Difference, compare, compare_things, sides
from lockstep.metadata.part import Item, Part, Parts, collected
from lockstep.metadata.schema_part import PLACEMENTS, SCHEMA
from lockstep.placement.placements import Placements
from lockstep.placement.tablets.map import TabletMap
from lockstep.placement.tablets.resize import NO_RESIZE, Resize, ResizeKind
from lockstep.placement.tablets.shards import NO_SHARDS, Shards, shards_of_items
from lockstep.schema.log_tables import SUFFIX, is_log
from lockstep.schema.model import Schema, Table
from lockstep.values import codec
from lockstep.values.hash_tree import blake


class ResizePhase(enum.StrEnum):
    """Where a split or merge is. PREPARING: its replicas get ready, its pairs come together. CLOSING: no move
    begins, and those under way end. SETTLING: the new map is there, and not yet everywhere."""

    NONE = "none"
    PREPARING = "preparing"
    CLOSING = "closing"
    SETTLING = "settling"


class Resizing(msgspec.Struct, frozen=True, array_like=True):
    """What was decided last of how many tablets a table has, and how far that is; `epoch` is when the phase
    was entered. The decision of a map that settles says already that there is none. `kept`: the number that
    somebody gave it by hand, below which it does not merge by itself."""

    resize: Resize = NO_RESIZE
    phase: ResizePhase = ResizePhase.NONE
    epoch: int = 0
    kept: int = 0

    @property
    def holds_still(self) -> bool:
        """Whether moves wait, but for those of nodes that are to be emptied."""
        return self.phase in (ResizePhase.CLOSING, ResizePhase.SETTLING)

    def title(self) -> str:
        """How people refer to it: `split 3`."""
        if self.phase is ResizePhase.SETTLING:
            return f"the new map of epoch {self.epoch}"
        return f"{self.resize.kind.name.lower()} {self.resize.sequence}"


NOT_RESIZING: Final = Resizing()


class TabletGroupHead(msgspec.Struct, frozen=True, array_like=True):
    """A tablet group without its shards; `table` is the name of the table whose group it is.

    `is_balanced`: whether the balancer may move its tablets. `resizing`: how its number changes.
    """

    id: int
    keyspace: str
    table: str
    is_balanced: bool = True
    resizing: Resizing = NOT_RESIZING


class TabletGroup(msgspec.Struct, frozen=True, dict=True):
    head: TabletGroupHead
    shards: Shards = NO_SHARDS

    @property
    def id(self) -> int:
        return self.head.id

    @cached_property
    def digest(self) -> bytes:
        return blake(codec.encode((self.head, self.shards.digest)))

    def map(self, placements: Placements) -> TabletMap:
        """The tablets, with the ring that the placements have of the group."""
        return TabletMap(placements.ring(self.id), self.shards)


NO_TABLET_GROUPS: Final[HashTrieMap[int, TabletGroup]] = HashTrieMap()


class Tablets(msgspec.Struct, frozen=True, dict=True):
    """`by_group` has every tablet group. `is_balanced`: whether tablets are moved to even out the load; nodes
    that leave are emptied all the same."""

    by_group: HashTrieMap[int, TabletGroup] = NO_TABLET_GROUPS
    is_balanced: bool = True

    @cached_property
    def groups(self) -> tuple[TabletGroup, ...]:
        """By id."""
        return tuple(self.by_group[group] for group in sorted(self.by_group))

    @cached_property
    def digest(self) -> bytes:
        return blake(codec.encode((self.is_balanced, b"".join([one.digest for one in self.groups]))))

    def table_of(self, group: int) -> str:
        """The table of a tablet group, as KEYSPACE.TABLE; empty for a group of the ring."""
        found = self.by_group.get(group)
        return f"{found.head.keyspace}.{found.head.table}" if found is not None else ""

    def with_groups(self, changed: Iterable[TabletGroup]) -> Tablets:
        by_group = self.by_group
        for group in changed:
            assert group.id > 0 and group.head.table, "a tablet group is that of a table"
            by_group = by_group.insert(group.id, group)
        return self if by_group is self.by_group else Tablets(by_group, self.is_balanced)

    def without(self, gone: Iterable[int]) -> Tablets:
        by_group = self.by_group
        for group in gone:
            by_group = by_group.remove(group)
        return self if by_group is self.by_group else Tablets(by_group, self.is_balanced)


NO_TABLETS: Final = Tablets()
_HEAD, _SHARDS, _BALANCED = 0, 1, 2


def _items(tablets: Tablets) -> Iterator[Item]:
    for group in tablets.groups:
        yield _HEAD, group.head
        for packed in group.shards.items():
            yield _SHARDS, packed
    yield _BALANCED, tablets.is_balanced


def _of_items(items: Sequence[Item]) -> Tablets:
    found: list[tuple[TabletGroupHead, list[bytes]]] = []
    is_balanced = True
    for kind, value in items:
        if kind == _HEAD:
            found.append((value, []))
        elif kind == _SHARDS:
            assert found, "shards belong to a tablet group"
            found[-1][1].append(value)
        else:
            is_balanced = value
    groups = {head.id: TabletGroup(head, shards_of_items(pieces)) for head, pieces in found}
    return Tablets(HashTrieMap(groups), is_balanced)


def own_tables(schema: Schema) -> Iterator[Table]:
    """The tables that have a tablet group of their own, by keyspace and name; costs as many as tablet
    keyspaces have."""
    for keyspace in schema.keyspaces:
        if keyspace.tablets is not None:
            yield from (table for table in keyspace.tables if lies_with(table, schema) is None)


def lies_with(table: Table, schema: Schema) -> Table | None:
    """The table with whose tablets those of `table` lie together: its base, for a log of changes, and for a
    view with the same partition key in the same order."""
    if is_log(table):
        logged = schema.table(table.keyspace, table.name.removesuffix(SUFFIX))
        assert logged is not None, "a log goes with its table"
        return logged
    if table.view is None:
        return None
    base = schema.table(table.keyspace, table.view.base)
    assert base is not None, "a base table is dropped after its views"
    assert base.view is None, "a view is made from a table"
    same = [(one.name, one.type) for one in table.partition_key] == [
        (one.name, one.type) for one in base.partition_key
    ]
    return base if same else None


def _validate_resizing(head: TabletGroupHead) -> None:
    phase, kind = head.resizing.phase, head.resizing.resize.kind
    is_decided = phase in (ResizePhase.PREPARING, ResizePhase.CLOSING)
    assert is_decided is (kind is not ResizeKind.NONE), "what is decided is on its way"
    assert head.resizing.epoch > 0 or phase is ResizePhase.NONE, "a phase was entered at some epoch"


def _validate(now: Parts, before: Parts | None) -> None:
    schema, placements, tablets = now[SCHEMA], now[PLACEMENTS], now[TABLETS]
    known = before[TABLETS].by_group if before is not None else NO_TABLET_GROUPS
    former = before[PLACEMENTS].by_id if before is not None else None
    for group in tablets.groups:
        ring = placements.by_id.get(group.id)
        assert ring is not None, f"tablet group {group.id} has a placement"
        _validate_resizing(group.head)
        if known.get(group.id) is not group or former is None or former.get(group.id) is not ring:
            group.map(placements).validate()
    if before is not None and now.is_same(before, SCHEMA) and now.is_same(before, TABLETS):
        return
    owners = {table.group: (table.keyspace, table.name) for table in own_tables(schema)}
    listed = {group.id: (group.head.keyspace, group.head.table) for group in tablets.groups}
    assert owners == listed, "exactly the tables with tablets of their own have a tablet group"
    for keyspace in schema.keyspaces:
        assert (keyspace.tablets is None) == bool(keyspace.group), f"{keyspace.name} has a ring or tablets"
        for table in keyspace.tables if keyspace.tablets is not None else ():
            base = lies_with(table, schema)
            assert base is None or base.group == table.group, f"{table.name} lies with {base.name}"


def _compare(path: str, before: Tablets, after: Tablets) -> Iterator[Difference]:
    ids = sorted({*before.by_group, *after.by_group})
    pairs = [(before.by_group.get(one), after.by_group.get(one)) for one in ids]
    differing = [(was, now) for was, now in pairs if was is not now]
    heads = [(was.head if was else None, now.head if now else None) for was, now in differing]
    yield from compare_things(f"{path}.groups", *sides(heads))
    yield from compare(f"{path}.is_balanced", before.is_balanced, after.is_balanced)


TABLETS: Final[Part[Tablets]] = Part(
    name="tablets",
    number=17,
    empty=NO_TABLETS,
    items=_items,
    kinds=(TabletGroupHead, bytes, bool),
    builder=collected(_of_items),
    digest=lambda tablets: tablets.digest,
    validate=_validate,
    needs=(SCHEMA, PLACEMENTS),
    is_nested=True,
    compare=_compare,
)
