"""What a change of a table means for one of its views, pure functions of rows, and which replica of the view
a replica of the base table brings its updates to.

A row of a view is a row of its base table under another key, cell by cell with the same ids and timestamps,
so that whatever orders rows of the base by timestamps orders those of the view too. Where the key of the view
has a column that is not in the base's (the added column), the base row moves from key to key as that column
changes. Such rows have a marker, a cell of its own that alone says whether the row exists: alive with the
timestamp and expiry of the added column's cell, dead with the timestamp of a cell that lost. A tombstone wins
a tie, and a value that lost never wins again, so a marker that is dead for a value stays dead for it; when
the value comes back, it does so with a newer timestamp. Other views copy row markers and all cells, also of
columns they do not show, for these decide whether a row exists.

Invariant: the rows that replicas derive from any orders of the same changes, with any of them repeated, merge
to the same visible rows, and these are the rows of the merged base table under their keys. It holds because
each replica derives from every change that it applies: the change itself where the row stays, the whole row
where it comes to a key, and a dead marker for every value of the added column that it knew or was told of and
that lost. In each data centre pairs are one to one, so that what a quorum of the base has comes to a quorum
of the view. They are of one metadata value: while replicas of either change, or when they changed since the
write was planned, there are none, and an update goes to all replicas of the view.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from lockstep.cql.ddl.view_statements import filter_of
from lockstep.quorum.plans import Plan, PlanBook
from lockstep.schema.clustering import decode, derived_key, encode_prefix, split_key
from lockstep.schema.model import Keyspace, Table
from lockstep.schema.user_types import type_in
from lockstep.storage.rows.reconcile import Shadow, merge_partitions, stronger, stronger_cell
from lockstep.storage.rows.visible import without_dead
from lockstep.values import codec
from lockstep.values.errors import InvalidRequest
from lockstep.values.ids import MUTATION_ID_BYTES, Consistency, NodeId
from lockstep.values.limits import PLANS_CACHED_MAX, VIEW_MUTATION_BYTES, VIEW_MUTATION_ROWS
from lockstep.values.rows import (
    MARKER_COLUMN,
    Cell,
    ColumnDeletion,
    Deletion,
    Liveness,
    Mutation,
    Partition,
    Row,
)
from lockstep.values.tokens import token_of

#: About what a cell takes beside its value.
_CELL_BYTES = 24


class ViewOf:
    """A view of a base table, ready to derive rows."""

    def __init__(self, view: Table, base: Table, space: Keyspace) -> None:
        assert view.view is not None, f"{view.name} is no view"
        self.table_id = view.id
        self._added = view.view.added
        self._base_key = tuple(column.id for column in base.partition_key)
        self._base_clustering = tuple(column.id for column in base.clustering)
        self._base_types = [type_in(space, column.type) for column in base.clustering]
        self._base_descending = [column.descending for column in base.clustering]
        self._key = tuple(column.id for column in view.partition_key)
        self._clustering = tuple(column.id for column in view.clustering)
        self._types = [type_in(space, column.type) for column in view.clustering]
        self._descending = [column.descending for column in view.clustering]
        self._in_view = filter_of(view.view.where, base, space)
        copied = view.regular if self._added else base.regular
        self._copied = frozenset(column.id for column in copied)
        #: Columns of the base that were dropped and added again, and until when their cells are dead.
        self._dead = dict(base.dead)

    def derived(self, before: Partition, mutation: Mutation, now_s: int) -> list[Mutation]:
        """What a replica that had `before` of the rows that a mutation touches changes in the view: each
        mutation has rows that are dead alone, or none."""
        change = Partition(
            mutation.token,
            mutation.key,
            mutation.deletion,
            mutation.range_deletions,
            None,
            self._shown(mutation.rows),
        )
        before = msgspec.structs.replace(before, rows=self._shown(before.rows)) if self._dead else before
        after = merge_partitions((before, change))
        shadow = Shadow(after.deletion, after.range_deletions)
        old = {row.clustering: row for row in before.rows}
        new = {row.clustering: row for row in after.rows}
        told: dict[bytes, list[Row]] = {}
        for row in change.rows:
            told.setdefault(row.clustering, []).append(row)
        keys = self._keys_of(mutation.key)
        rows: list[tuple[bytes, Row]] = []
        for clustering in sorted({*old, *told}):
            states = (old.get(clustering), told.get(clustering, []), new.get(clustering))
            rows += self._row(keys, clustering, *states, shadow.over(clustering), now_s)
        dead = [one for one in rows if _is_dead(one[1])]
        rest = [one for one in rows if not _is_dead(one[1])]
        at = mutation.timestamp_us
        return [*self._mutations(dead, at), *self._mutations(rest, at)]

    def whole(self, partition: Partition) -> list[Mutation]:
        """All that a canonical partition of the base is in the view."""
        keys = self._keys_of(partition.key)
        shadow = Shadow(partition.deletion, partition.range_deletions)
        rows: list[tuple[bytes, Row]] = []
        for row in self._shown(partition.rows):
            rows += self._row(keys, row.clustering, None, [row], row, shadow.over(row.clustering), 0)
        newest = max((_newest(row) for _, row in rows), default=0)
        return list(self._mutations(rows, newest))

    def _shown(self, rows: tuple[Row, ...]) -> tuple[Row, ...]:
        """Rows of the base as it shows them."""
        if not self._dead:
            return rows
        return tuple(shown for row in rows if (shown := without_dead(row, self._dead)) is not None)

    # -- one row ----------------------------------------------------------------------------------

    def _row(
        self,
        key_of: Callable[[bytes, bytes | None], tuple[bytes, bytes] | None],
        clustering: bytes,
        old: Row | None,
        told: Sequence[Row],
        new: Row | None,
        over: Deletion | None,
        now_s: int,
    ) -> Iterator[tuple[bytes, Row]]:
        """(partition key, row) of what changes in the view with one row of the base. `old` and `new` are
        canonical, `told` is the change, `over` the deletion around the row."""
        deletion = stronger(over, new.deletion) if new is not None else over
        if not self._added:
            place = key_of(clustering, None)
            if place is not None:
                yield from self._copies(place, told, deletion)
            return
        ruling = _value_cell(new, self._added)
        lost: dict[bytes, Cell] = {}
        for row in (*((old,) if old is not None else ()), *told):
            cell = _value_cell(row, self._added)
            if cell is None or cell.value is None:
                continue
            if ruling is None or ruling.value != cell.value:
                known = lost.get(cell.value)
                lost[cell.value] = cell if known is None else stronger_cell(known, cell)
        for value in sorted(lost):
            place = key_of(clustering, value)
            if place is not None:
                dead = Cell(MARKER_COLUMN, None, lost[value].timestamp_us, 0, now_s)
                yield place[0], Row(place[1], None, deletion, (dead,))
        if ruling is None or ruling.value is None or new is None:
            return
        place = key_of(clustering, ruling.value)
        if place is None:
            return
        alive = Cell(MARKER_COLUMN, b"", ruling.timestamp_us, ruling.ttl_s, ruling.expires_at_s)
        stayed = _value_cell(old, self._added)
        expired = stayed is not None and stayed.ttl_s > 0 and stayed.expires_at_s <= now_s
        if stayed is not None and stayed.value == ruling.value and not expired:
            yield from self._copies(place, told, deletion, alive)
        else:
            yield from self._copies(place, [new], deletion, alive)

    def _copies(
        self,
        place: tuple[bytes, bytes],
        states: Sequence[Row],
        deletion: Deletion | None,
        alive: Cell | None = None,
    ) -> Iterator[tuple[bytes, Row]]:
        """States of a row at its place in the view; the deletion alone where there are none."""
        key, clustering = place
        marker = (alive,) if alive is not None else ()
        if not states and (deletion is not None or marker):
            yield key, Row(clustering, None, deletion, marker)
        for row in states:
            cells = tuple(cell for cell in row.cells if cell.column in self._copied)
            gone = tuple(entry for entry in row.column_deletions if entry.column in self._copied)
            liveness = None if self._added else row.liveness
            covering = stronger(deletion, row.deletion)
            yield from _parts(key, Row(clustering, liveness, covering, (*marker, *cells), gone))

    def _keys_of(self, key: bytes) -> Callable[[bytes, bytes | None], tuple[bytes, bytes] | None]:
        """From a base row's clustering and its value of the added column to its place in the view; None
        when it has none there."""
        parts = dict(zip(self._base_key, split_key(key, len(self._base_key)), strict=True))

        def place(clustering: bytes, added: bytes | None) -> tuple[bytes, bytes] | None:
            given = decode(self._base_types, self._base_descending, clustering)
            values = {**parts, **dict(zip(self._base_clustering, given, strict=True))}
            if added is not None:
                values[self._added] = added
            if not self._in_view(values):
                return None
            try:
                view_key = derived_key([values[column] for column in self._key])
            except InvalidRequest:
                return None  # Nobody could ask for a key that is too long.
            ordered = [values[column] for column in self._clustering]
            return view_key, encode_prefix(self._types, self._descending, ordered) if ordered else b""

        return place

    # -- mutations --------------------------------------------------------------------------------

    def _mutations(self, rows: Iterable[tuple[bytes, Row]], timestamp_us: int) -> Iterator[Mutation]:
        """Rows as mutations of the view, none too large for one write."""
        by_key: dict[bytes, list[Row]] = {}
        for key, row in rows:
            by_key.setdefault(key, []).append(row)
        for key in sorted(by_key):
            group: list[Row] = []
            size = 0
            for row in by_key[key]:
                added = _size(row)
                if group and (size + added > VIEW_MUTATION_BYTES or len(group) >= VIEW_MUTATION_ROWS):
                    yield self._mutation(key, group, timestamp_us)
                    group, size = [], 0
                group.append(row)
                size += added
            yield self._mutation(key, group, timestamp_us)

    def _mutation(self, key: bytes, rows: Sequence[Row], timestamp_us: int) -> Mutation:
        """Its id is of its content: replicas that derive the same write the same, and others beside it."""
        content = codec.encode((self.table_id, key, rows))
        id_ = hashlib.blake2b(content, digest_size=MUTATION_ID_BYTES).digest()
        return Mutation(self.table_id, token_of(key), key, id_, timestamp_us, rows=tuple(rows))


def for_all(mutation: Mutation) -> bool:
    """Whether all replicas of a view are to have a change that a replica of the base derived: which values of
    the added column have lost, and which rows are gone. A replica of the view may have heard of one from
    another replica of the base, which never hears what replaced it, or is lost; who takes its place gets
    the base without that row, and finds nothing to tell when it hears what deleted it."""
    return any(map(_is_dead, mutation.rows))


def _is_dead(row: Row) -> bool:
    if row.cells:
        return row.cells[0].column == MARKER_COLUMN and row.cells[0].value is None
    return row.deletion is not None and row.liveness is None and not row.column_deletions


def _value_cell(row: Row | None, column: int) -> Cell | None:
    if row is None:
        return None
    for cell in row.cells:
        if cell.column == column:
            return cell
    return None


def _parts(key: bytes, row: Row) -> Iterator[tuple[bytes, Row]]:
    """A row in pieces, each small enough for one mutation."""
    if _size(row) <= VIEW_MUTATION_BYTES:
        yield key, row
        return
    first = Row(row.clustering, row.liveness, row.deletion, (), row.column_deletions)
    group: list[Cell] = []
    size = _size(first)
    for cell in row.cells:
        added = _cell_size(cell)
        if group and size + added > VIEW_MUTATION_BYTES:
            yield key, Row(row.clustering, first.liveness, row.deletion, tuple(group), first.column_deletions)
            first, group, size = Row(row.clustering), [], 0
        group.append(cell)
        size += added
    yield key, Row(row.clustering, first.liveness, row.deletion, tuple(group), first.column_deletions)


def _size(row: Row) -> int:
    deletions: Sequence[ColumnDeletion] = row.column_deletions
    return _CELL_BYTES * (2 + len(deletions)) + sum(map(_cell_size, row.cells))


def _cell_size(cell: Cell) -> int:
    return _CELL_BYTES + len(cell.value or b"") + len(cell.path or b"")


def _newest(row: Row) -> int:
    liveness: Liveness | None = row.liveness
    times = [cell.timestamp_us for cell in row.cells]
    times += [entry.deletion.timestamp_us for entry in row.column_deletions]
    times += [found.timestamp_us for found in (liveness, row.deletion) if found is not None]
    return max(times, default=0)


def paired_with(
    base: Sequence[NodeId], view: Sequence[NodeId], dc_of: Callable[[NodeId], str], own: NodeId
) -> NodeId | None:
    """The replica of the view that one of the base is paired with: itself where it can be. None where there
    are not as many of both in its data centre."""
    if own not in base:
        return None
    here = [node for node in base if dc_of(node) == dc_of(own)]
    there = [node for node in view if dc_of(node) == dc_of(own)]
    if len(here) != len(there):
        return None
    if own in there:
        return own
    only_base = [node for node in here if node not in there]
    only_view = [node for node in there if node not in here]
    return only_view[only_base.index(own)]


class ViewPairs:
    def __init__(self, plans: PlanBook, own_id: Callable[[], int]) -> None:
        self._plans = plans
        self._own_id = own_id
        #: Of one metadata value.
        self._epoch = -1
        self._made: dict[tuple[Plan, Plan], Plan | None] = {}

    def plan(self, base: Mutation, view: Mutation, first_epoch: int) -> Plan | None:
        """How to write one of a view to the paired replica alone; None: it goes to all. `first_epoch`: of the
        plan that the write to the base was made with. InvalidRequest when either table is gone."""
        based = self._plans.write_plan(base.table_id, base.token, Consistency.ANY)
        if based.shard is not None:
            return None  # No replica of a tracked table is waited for: it gets by id what it lacks.
        viewed = self._plans.write_plan(view.table_id, view.token, Consistency.ANY)
        if max(based.needs_epoch, viewed.needs_epoch) > first_epoch:
            return None
        if self._epoch != self._plans.epoch or len(self._made) >= PLANS_CACHED_MAX:
            self._epoch = self._plans.epoch
            self._made = {}
        known = (based, viewed)
        if known not in self._made:
            self._made[known] = self._pair(base.table_id, based, viewed)
        return self._made[known]

    def _pair(self, table_id: int, base: Plan, view: Plan) -> Plan | None:
        placement = self._plans.placement(table_id)
        if placement is None or placement.recounts:
            return None
        for plan in (base, view):
            if plan.group.write_only or len(plan.targets) != len(plan.group.reads):
                return None
        dcs = {target.node: target.dc for target in (*base.targets, *view.targets)}
        node = paired_with(base.group.reads, view.group.reads, dcs.__getitem__, NodeId(self._own_id()))
        for target in view.targets:
            if target.node == node:
                return view.only(target)
        return None

    def validate(self) -> None:
        assert len(self._made) <= PLANS_CACHED_MAX, "pairs make room for others"
        assert all(base.epoch == view.epoch == self._epoch for base, view in self._made), "pairs of one value"
