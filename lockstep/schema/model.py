"""The schema as a value.

Invariant: whatever is listed is sorted (keyspaces and tables by name, columns by kind, then position or
name), so that equal schemas have equal bytes and digests, whatever changes led to them. `Table.id` and
`Column.id` are given once by the log. Keyspaces and tables lie in persistent maps, whose own order means
nothing: a change of one table costs the same beside ten others and beside a hundred thousand.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from functools import cached_property
from operator import attrgetter
from typing import Final

import msgspec
from msgspec.structs import replace
from rpds import HashTrieMap

from lockstep.schema.objects import Aggregate, Function, Index, View
from lockstep.schema.tablet_options import KeyspaceTablets
from lockstep.values import codec
from lockstep.values.hash_tree import EMPTY_TREE, HashTree, blake, changed, key_of_text, tree_of


class ColumnKind(enum.IntEnum):
    PARTITION_KEY = 0
    CLUSTERING = 1
    STATIC = 2
    REGULAR = 3


class Column(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`type` is the canonical CQL text of the type, such as `map<text, frozen<list<int>>>`."""

    id: int
    name: str
    type: str
    kind: ColumnKind
    position: int = -1
    descending: bool = False


class DroppedColumn(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A column that was dropped: its cells at or below the time are dead. A column of its name that is added
    again has its id, and shows the others; no other column ever has it."""

    id: int
    name: str
    type: str
    dropped_at_us: int
    kind: ColumnKind = ColumnKind.REGULAR


class Table(msgspec.Struct, frozen=True, array_like=True, dict=True):
    """`id` is the storage prefix; `uuid` is what drivers see; `epoch` last changed it. A materialized view
    is a table with a `view`. `indexes` are sorted by name, and so are `views`, names of views
    that are made from it. `group` is its placement group where it has one apart from its keyspace's."""

    id: int
    uuid: str
    keyspace: str
    name: str
    columns: tuple[Column, ...]
    options: tuple[tuple[str, str], ...] = ()
    epoch: int = 0
    next_column_id: int = 1
    dropped: tuple[DroppedColumn, ...] = ()
    indexes: tuple[Index, ...] = ()
    view: View | None = None
    views: tuple[str, ...] = ()
    group: int = 0
    #: The epoch at which it became tracked, if it was there before; 0: what is in it was written with ids.
    tracked_since: int = 0

    @cached_property
    def by_name(self) -> dict[str, Column]:
        return {column.name: column for column in self.columns}

    @cached_property
    def by_id(self) -> dict[int, Column]:
        return {column.id: column for column in self.columns}

    @cached_property
    def gone(self) -> tuple[int, ...]:
        """Ids of columns that were dropped and are not there, ascending."""
        return tuple(sorted(column.id for column in self.dropped if column.id not in self.by_id))

    @cached_property
    def dead(self) -> tuple[tuple[int, int], ...]:
        """(id, microseconds) of columns that were dropped and added again, ascending: cells at or below the
        time are dead."""
        again = (one for one in self.dropped if one.id in self.by_id)
        return tuple(sorted((column.id, column.dropped_at_us) for column in again))

    @cached_property
    def partition_key(self) -> tuple[Column, ...]:
        return tuple(c for c in self.columns if c.kind is ColumnKind.PARTITION_KEY)

    @cached_property
    def clustering(self) -> tuple[Column, ...]:
        return tuple(c for c in self.columns if c.kind is ColumnKind.CLUSTERING)

    @cached_property
    def static(self) -> tuple[Column, ...]:
        return tuple(c for c in self.columns if c.kind is ColumnKind.STATIC)

    @cached_property
    def regular(self) -> tuple[Column, ...]:
        return tuple(c for c in self.columns if c.kind is ColumnKind.REGULAR)

    @cached_property
    def is_counter(self) -> bool:
        """Whether it counts: then all columns outside its key are counters."""
        return any(column.type == "counter" for column in self.columns)

    def option(self, name: str, default: str) -> str:
        return dict(self.options).get(name, default)


NO_TABLES: Final[HashTrieMap[str, Table]] = HashTrieMap()
NO_IDS: Final[HashTrieMap[int, Table]] = HashTrieMap()
NO_UUIDS: Final[HashTrieMap[str, int]] = HashTrieMap()


class Replication(msgspec.Struct, frozen=True, array_like=True, order=True):
    """`strategy` is SimpleStrategy or NetworkTopologyStrategy (short names).

    `counts` is (("", rf),) for SimpleStrategy and sorted (data centre, rf) pairs otherwise. Where some of a
    data centre's replicas are witnesses, it has a second pair with how many, below zero: so a setting
    without any is written as ever. `racks`: of data centres where it is said which racks have a replica each,
    these, sorted; of tablets alone. On the way to such a list the factor may be another than it has names.
    """

    strategy: str
    counts: tuple[tuple[str, int], ...]
    racks: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @property
    def factors(self) -> tuple[tuple[str, int], ...]:
        """How many replicas each data centre has, witnesses included."""
        if all(count >= 0 for _, count in self.counts):
            return self.counts
        return tuple((dc, count) for dc, count in self.counts if count >= 0)

    @property
    def witnesses(self) -> dict[str, int]:
        """How many of a data centre's replicas keep no table data, where there are any."""
        return {dc: -count for dc, count in self.counts if count < 0}

    @property
    def has_witnesses(self) -> bool:
        return any(count < 0 for _, count in self.counts)

    @property
    def total(self) -> int:
        return sum(factor for _, factor in self.factors)

    @property
    def factor_texts(self) -> tuple[tuple[str, str], ...]:
        """The factors as they are written: `3`, or `3/1` with one witness."""
        witnesses = self.witnesses
        return tuple(
            (dc, f"{factor}/{witnesses[dc]}" if dc in witnesses else str(factor))
            for dc, factor in self.factors
        )

    def text(self) -> str:
        """`SimpleStrategy 3` or `NetworkTopologyStrategy east 3, west 2`, for people."""
        lists = self.lists
        texts = [f"{dc} {factor}" if dc else factor for dc, factor in self.factor_texts]
        named = [f" ({', '.join(lists[dc])})" if dc in lists else "" for dc, _ in self.factors]
        return (
            f"{self.strategy} {', '.join([text + racks for text, racks in zip(texts, named, strict=True)])}"
        )

    @property
    def lists(self) -> dict[str, tuple[str, ...]]:
        """The racks that have a replica each, by data centre, where its factor is that of its list."""
        factors = dict(self.factors)
        return {dc: racks for dc, racks in self.racks if factors.get(dc, 0) == len(racks)}

    def wanted_racks(self, dc: str) -> tuple[str, ...]:
        """The racks of a data centre that are to have a replica each, also on the way there; else none."""
        return dict(self.racks).get(dc, ())


class UserType(msgspec.Struct, frozen=True, array_like=True):
    """A user-defined type. Fields are in the order declared, their types canonical texts as of a column;
    `epoch` last changed it. A change of a type is also one of the tables that use it: see `Table.epoch`."""

    name: str
    field_names: tuple[str, ...]
    field_types: tuple[str, ...]
    epoch: int = 0


class KeyspaceHead(msgspec.Struct, frozen=True, array_like=True):
    """What a keyspace is without its tables; `types` are sorted by name, functions and aggregates by
    signature. `group` is the placement group of its tables, which the metadata gives it; 0 where each table
    has one of its own, for it spreads by `tablets`. `tracked`: whether replicas know by ids what they hold of
    its tables that do not say otherwise."""

    name: str
    replication: Replication
    durable_writes: bool = True
    epoch: int = 0
    types: tuple[UserType, ...] = ()
    functions: tuple[Function, ...] = ()
    aggregates: tuple[Aggregate, ...] = ()
    group: int = 0
    tablets: KeyspaceTablets | None = None
    tracked: bool = False


class Keyspace(msgspec.Struct, frozen=True, dict=True):
    """In memory only; `head` and the tables are its stored form. `by_name` has no order of its own."""

    name: str
    replication: Replication
    durable_writes: bool = True
    by_name: HashTrieMap[str, Table] = NO_TABLES
    epoch: int = 0
    types: tuple[UserType, ...] = ()
    functions: tuple[Function, ...] = ()
    aggregates: tuple[Aggregate, ...] = ()
    group: int = 0
    tablets: KeyspaceTablets | None = None
    tracked: bool = False

    @property
    def head(self) -> KeyspaceHead:
        return KeyspaceHead(
            self.name,
            self.replication,
            self.durable_writes,
            self.epoch,
            self.types,
            self.functions,
            self.aggregates,
            self.group,
            self.tablets,
            self.tracked,
        )

    @cached_property
    def types_by_name(self) -> dict[str, UserType]:
        return {found.name: found for found in self.types}

    @cached_property
    def function_names(self) -> frozenset[str]:
        """Names of functions and aggregates."""
        functions = {one.name for one in self.functions}
        return frozenset(functions.union(one.name for one in self.aggregates))

    @cached_property
    def tables(self) -> tuple[Table, ...]:
        """All tables by name; costs as many as there are, so not for what every change does."""
        return tuple(sorted(self.by_name.values(), key=attrgetter("name")))

    def group_of(self, table: Table) -> int:
        """The placement group of one of its tables."""
        return table.group or self.group

    @cached_property
    def groups(self) -> dict[int, tuple[Table, ...]]:
        """Its placement groups, with their tables by name; costs as many as there are."""
        found: dict[int, list[Table]] = {self.group: []} if self.group else {}
        for table in self.tables:
            found.setdefault(self.group_of(table), []).append(table)
        return {group: tuple(tables) for group, tables in found.items()}


class SchemaImage(msgspec.Struct, frozen=True, array_like=True):
    """Canonical stored form of a schema: keyspaces by name, tables in the order of `Schema.table_tree`."""

    keyspaces: tuple[KeyspaceHead, ...] = ()
    tables: tuple[Table, ...] = ()
    next_table_id: int = 1


NO_KEYSPACES: Final[HashTrieMap[str, Keyspace]] = HashTrieMap()


class Schema(msgspec.Struct, frozen=True, dict=True):
    """In memory only; `image` is its stored form. Made by `schema_of` and the `with_` methods, which keep the
    maps in step with each other: `tables_by_id`, `table_ids` by UUID, and the trees for digests and
    comparison (`keyspace_tree` by name, its digests without the tables; `table_tree` by id)."""

    by_name: HashTrieMap[str, Keyspace] = NO_KEYSPACES
    next_table_id: int = 1
    tables_by_id: HashTrieMap[int, Table] = NO_IDS
    table_ids: HashTrieMap[str, int] = NO_UUIDS
    keyspace_tree: HashTree[Keyspace] = EMPTY_TREE
    table_tree: HashTree[Table] = EMPTY_TREE

    @cached_property
    def keyspaces(self) -> tuple[Keyspace, ...]:
        """All keyspaces by name."""
        return tuple(sorted(self.by_name.values(), key=attrgetter("name")))

    @cached_property
    def digest(self) -> bytes:
        """32 bytes, the same for equal schemas and only for those."""
        trees = self.keyspace_tree.digest + self.table_tree.digest
        return blake(codec.encode((self.next_table_id, trees)))

    def group_of(self, table: Table) -> int:
        """The placement group of a table of this schema."""
        return table.group or self.by_name[table.keyspace].group

    def tables_in(self, group: int) -> tuple[Table, ...]:
        """The tables of a placement group, by keyspace and name; costs as many as there are."""
        return tuple(table for keyspace in self.keyspaces for table in keyspace.groups.get(group, ()))

    def table_ids_in(self, group: int) -> tuple[int, ...]:
        """Ids of the tables of a placement group, in that order. Work on ranges asks for each of them."""
        assert group, "0 stands for the group of a table's keyspace, and is none"
        found = self._ids_in.get(group)
        if found is None:
            found = self._ids_in[group] = tuple([table.id for table in self.tables_in(group)])
        return found

    @cached_property
    def _ids_in(self) -> dict[int, tuple[int, ...]]:
        """Of the groups that were asked about."""
        return {}

    def table(self, keyspace: str, name: str) -> Table | None:
        found = self.by_name.get(keyspace)
        return found.by_name.get(name) if found is not None else None

    def table_ids_gone_in(self, later: Schema) -> tuple[int, ...]:
        """Ids of tables that a later schema no longer has, ascending; costs what changed."""
        return tuple(id_ for id_, _, now in changed(self.table_tree, later.table_tree) if now is None)

    def keyspaces_changed_in(self, later: Schema) -> list[tuple[Keyspace | None, Keyspace | None]]:
        """(here, later) for keyspaces that differ, or that only one of the two has."""
        return [(now, then) for _, now, then in changed(self.keyspace_tree, later.keyspace_tree)]

    def replicates_as(self, later: Schema) -> bool:
        """Whether each keyspace is in both, with one replication and placement group; costs what changed."""
        return all(
            now is not None
            and then is not None
            and (now.replication, now.group) == (then.replication, then.group)
            for now, then in self.keyspaces_changed_in(later)
        )

    # Changes: each costs what it changes, not what the schema holds.

    def with_keyspace(self, keyspace: Keyspace) -> Schema:
        """Add a keyspace without tables, or replace one by itself with another head."""
        known = self.by_name.get(keyspace.name)
        assert keyspace.by_name is (known.by_name if known is not None else NO_TABLES), "tables stay"
        return replace(
            self,
            by_name=self.by_name.insert(keyspace.name, keyspace),
            keyspace_tree=self._tree_with(keyspace),
        )

    def without_keyspace(self, name: str) -> Schema:
        """Drop a keyspace with its tables; KeyError when there is none."""
        ids, uuids, dropped = self.tables_by_id, self.table_ids, self.by_name[name].by_name
        for table in dropped.values():
            assert ids[table.id] is table, "a table is found by its id"
            ids, uuids = ids.remove(table.id), uuids.remove(table.uuid)
        assert len(ids) == len(uuids), "a table has one id and one UUID"
        tree = self.table_tree.without_all(table.id for table in dropped.values())
        keyspace_tree = self.keyspace_tree.without(key_of_text(name))
        return Schema(self.by_name.remove(name), self.next_table_id, ids, uuids, keyspace_tree, tree)

    def with_table(self, table: Table) -> Schema:
        """Add a table to its keyspace, or put it in the place of the one of its name, also under another id.
        KeyError when there is no such keyspace."""
        assert 0 < table.id < self.next_table_id, f"table id {table.id} was never given"
        keyspace = self.by_name[table.keyspace]
        known = keyspace.by_name.get(table.name)
        ids, uuids, tree = self.tables_by_id, self.table_ids, self.table_tree
        former = ids.get(table.id)
        assert former is None or former is known, "an id is of one table"
        if known is not None and known.id != table.id:
            ids, tree = ids.remove(known.id), tree.without(known.id)
        if known is not None and known.uuid != table.uuid:
            uuids = uuids.remove(known.uuid)
        return self._with_tables(
            replace(keyspace, by_name=keyspace.by_name.insert(table.name, table)),
            ids.insert(table.id, table),
            uuids.insert(table.uuid, table.id),
            tree.with_value(table.id, table, blake(codec.encode(table))),
        )

    def without_table(self, table: Table) -> Schema:
        """Drop a table that is there."""
        keyspace = self.by_name[table.keyspace]
        assert keyspace.by_name.get(table.name) is self.tables_by_id.get(table.id), "by name and id it is one"
        return self._with_tables(
            replace(keyspace, by_name=keyspace.by_name.remove(table.name)),
            self.tables_by_id.remove(table.id),
            self.table_ids.remove(table.uuid),
            self.table_tree.without(table.id),
        )

    def _with_tables(
        self,
        keyspace: Keyspace,
        ids: HashTrieMap[int, Table],
        uuids: HashTrieMap[str, int],
        tree: HashTree[Table],
    ) -> Schema:
        assert len(ids) == len(uuids), "a table has one id and one UUID"
        by_name = self.by_name.insert(keyspace.name, keyspace)
        key = key_of_text(keyspace.name)
        keyspace_tree = self.keyspace_tree.with_value(key, keyspace, self.keyspace_tree.digest_of(key))
        return Schema(by_name, self.next_table_id, ids, uuids, keyspace_tree, tree)

    def _tree_with(self, keyspace: Keyspace) -> HashTree[Keyspace]:
        digest = blake(codec.encode(keyspace.head))
        return self.keyspace_tree.with_value(key_of_text(keyspace.name), keyspace, digest)

    # Stored forms

    def image(self) -> SchemaImage:
        heads = tuple(keyspace.head for keyspace in self.keyspaces)
        tables = tuple(table for _, table in self.table_tree.items())
        assert len(tables) == len(self.tables_by_id), "trees and maps hold the same tables"
        return SchemaImage(heads, tables, self.next_table_id)

    def image_pieces(self, count: int) -> Iterator[SchemaImage]:
        """The image in pieces of at most `count` keyspaces or tables each, made one by one: all keyspaces
        first, then the tables. At least one piece; `SchemaBuilder` joins them."""
        assert count > 0, "a piece holds something, so that it ends"
        heads = tuple(keyspace.head for keyspace in self.keyspaces)
        for at in range(0, max(len(heads), 1), count):
            yield SchemaImage(heads[at : at + count], (), self.next_table_id)
        tables: list[Table] = []
        for _, table in self.table_tree.items():
            tables.append(table)
            if len(tables) == count:
                yield SchemaImage((), tuple(tables), self.next_table_id)
                tables = []
        if tables:
            yield SchemaImage((), tuple(tables), self.next_table_id)


def keyspace_of(head: KeyspaceHead, tables: Iterable[Table] = ()) -> Keyspace:
    """A keyspace as its parts say."""
    by_name = {table.name: table for table in tables}
    assert all(table.keyspace == head.name for table in by_name.values()), "a table says where it is"
    return _with_head(head, HashTrieMap(by_name) if by_name else NO_TABLES)


def _with_head(head: KeyspaceHead, by_name: HashTrieMap[str, Table]) -> Keyspace:
    return Keyspace(
        head.name,
        head.replication,
        head.durable_writes,
        by_name,
        head.epoch,
        head.types,
        head.functions,
        head.aggregates,
        head.group,
        head.tablets,
        head.tracked,
    )


def schema_of(keyspaces: Iterable[Keyspace], next_table_id: int = 1) -> Schema:
    """A schema of these keyspaces and their tables."""
    by_name = {keyspace.name: keyspace for keyspace in keyspaces}
    tables = {table.id: table for found in by_name.values() for table in found.by_name.values()}
    assert len(tables) == sum(len(found.by_name) for found in by_name.values()), "an id is of one table"
    heads = ((key_of_text(found.name), found, blake(codec.encode(found.head))) for found in by_name.values())
    return Schema(
        HashTrieMap(by_name),
        next_table_id,
        HashTrieMap(tables),
        HashTrieMap({table.uuid: table.id for table in tables.values()}),
        tree_of(heads),
        tree_of((table.id, table, blake(codec.encode(table))) for table in tables.values()),
    )


class SchemaBuilder:
    """Joins the pieces of an image. A piece costs what it holds, so a large schema can be built in turns."""

    def __init__(self) -> None:
        self._heads: dict[str, KeyspaceHead] = {}
        self._tables: dict[str, HashTrieMap[str, Table]] = {}
        self._ids = NO_IDS
        self._uuids = NO_UUIDS
        self._tree: HashTree[Table] = EMPTY_TREE
        self._next_table_id = 1

    def add(self, piece: SchemaImage) -> None:
        """Take the next piece; KeyError for a table without its keyspace."""
        assert not self._heads or piece.next_table_id == self._next_table_id, "pieces are of one schema"
        self._next_table_id = piece.next_table_id
        assert all(head.name not in self._heads for head in piece.keyspaces), "a keyspace comes once"
        assert all(0 < table.id < piece.next_table_id for table in piece.tables), "ids that were never given"
        for head in piece.keyspaces:
            self._heads[head.name], self._tables[head.name] = head, NO_TABLES
        for table in piece.tables:
            self._tables[table.keyspace] = self._tables[table.keyspace].insert(table.name, table)
            self._ids = self._ids.insert(table.id, table)
            self._uuids = self._uuids.insert(table.uuid, table.id)
            self._tree = self._tree.with_value(table.id, table, blake(codec.encode(table)))

    def schema(self) -> Schema:
        assert len(self._ids) == len(self._uuids), "a table has one id and one UUID"
        keyspaces = [_with_head(head, self._tables[name]) for name, head in self._heads.items()]
        heads = ((key_of_text(found.name), found, blake(codec.encode(found.head))) for found in keyspaces)
        return Schema(
            HashTrieMap({keyspace.name: keyspace for keyspace in keyspaces}),
            self._next_table_id,
            self._ids,
            self._uuids,
            tree_of(heads),
            self._tree,
        )


def schema_of_pieces(pieces: Iterable[SchemaImage]) -> Schema:
    """Inverse of `Schema.image_pieces`, and of `image` for a single piece. KeyError for a table without
    its keyspace."""
    builder = SchemaBuilder()
    for piece in pieces:
        builder.add(piece)
    return builder.schema()
