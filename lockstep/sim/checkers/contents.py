"""What each cell of a table is on each disk, and whether replicas that must be equal are.

Invariant: computed from fragments without the storage engine: of what is written to a cell the larger
timestamp wins; on a tie a deletion, then a value that expires, then the larger value. A deletion counts for
every cell it covers, so replicas that know the same by different deletions are equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.repairs import Repair, RepairState
from lockstep.schema.log_tables import token_in
from lockstep.sim.checkers.columns import DELETED, EXPIRES, STAYS, State
from lockstep.sim.checkers.replicas import DurableContent
from lockstep.sim.checkers.violation import Violation
from lockstep.storage.rows import keys
from lockstep.storage.rows.fragments import decode_header, decode_row
from lockstep.storage.store import Family
from lockstep.topology.roles import keepers
from lockstep.values.ids import NodeId
from lockstep.values.rows import Row
from lockstep.values.tokens import Range, token_of

_NEVER = State(-(1 << 63), STAYS)
#: (clustering, None for static; column, 0 for the row's marker; path of an element).
Cell = tuple[bytes | None, int, bytes | None]
#: (table, partition key, cell).
Place = tuple[int, bytes, Cell]
_MARKER = 0


class PartitionCells:
    """The cells of one partition on one disk."""

    def __init__(self) -> None:
        self._deletion_us = _NEVER.timestamp_us
        self._ranges: list[tuple[bytes, bytes, int]] = []
        self._rows: dict[bytes | None, int] = {}
        self._columns: dict[tuple[bytes | None, int], int] = {}
        self._cells: dict[Cell, State] = {}

    def add_header(self, store_key: bytes, value: bytes) -> None:
        header = decode_header(store_key, value)
        if header.deletion is not None:
            self._deletion_us = max(self._deletion_us, header.deletion.timestamp_us)
        for gone in header.range_deletions:
            self._ranges.append((gone.start, gone.end, gone.deletion.timestamp_us))

    def add_row(self, clustering: bytes | None, row: Row) -> None:
        if row.deletion is not None:
            self._rows[clustering] = max(self._rows.get(clustering, -(1 << 63)), row.deletion.timestamp_us)
        for entry in row.column_deletions:
            place = (clustering, entry.column)
            self._columns[place] = max(self._columns.get(place, -(1 << 63)), entry.deletion.timestamp_us)
        for cell in row.cells:
            kind = DELETED if cell.value is None else EXPIRES if cell.ttl_s else STAYS
            ends_s = cell.expires_at_s if kind == EXPIRES else 0
            state = State(cell.timestamp_us, kind, ends_s, cell.value or b"")
            self._take((clustering, cell.column, cell.path), state)
        if row.liveness is not None:
            kind = EXPIRES if row.liveness.ttl_s else STAYS
            state = State(row.liveness.timestamp_us, kind, row.liveness.expires_at_s)
            self._take((clustering, _MARKER, None), state)

    def _take(self, cell: Cell, state: State) -> None:
        self._cells[cell] = max(self._cells.get(cell, _NEVER), state)

    def cells(self) -> Iterable[Cell]:
        return self._cells

    def state(self, cell: Cell) -> State:
        clustering, column, _ = cell
        gone_us = max(
            self._deletion_us,
            self._rows.get(clustering, self._deletion_us),
            self._columns.get((clustering, column), self._deletion_us),
        )
        if clustering is not None:
            for start, end, at_us in self._ranges:
                if start <= clustering and (not end or clustering < end):
                    gone_us = max(gone_us, at_us)
        gone = State(gone_us) if gone_us > _NEVER.timestamp_us else _NEVER
        return max(gone, self._cells.get(cell, _NEVER))


def cells_of(content: DurableContent, table_ids: Sequence[int]) -> dict[tuple[int, bytes], PartitionCells]:
    """By (table, partition key): what the disk certainly holds of these tables."""
    content.refresh()
    found: dict[tuple[int, bytes], PartitionCells] = {}
    for store_key, value in content.pairs(table_ids):
        _, key, prefix = keys.split_partition(store_key)
        table_id = int.from_bytes(store_key[1:5], "big")
        partition = found.setdefault((table_id, key), PartitionCells())
        kind = store_key[len(prefix) : len(prefix) + 1]
        if kind == keys.KIND_HEADER:
            partition.add_header(store_key, value)
        elif kind == keys.KIND_STATIC:
            partition.add_row(None, decode_row(store_key, value, b""))
        else:
            clustering = keys.clustering_of(store_key, prefix)
            partition.add_row(clustering, decode_row(store_key, value, clustering))
    return found


class Replicas:
    """The disks of nodes at one moment, as far as they hold some tables."""

    def __init__(self, contents: Mapping[NodeId, DurableContent], table_ids: Sequence[int]) -> None:
        self._held = {node: cells_of(content, table_ids) for node, content in contents.items()}

    def places(self) -> dict[Place, None]:
        return {
            (*partition, cell): None
            for held in self._held.values()
            for partition, cells in held.items()
            for cell in cells.cells()
        }

    def states(self, place: Place, nodes: Iterable[NodeId]) -> dict[NodeId, State]:
        """What each of those of the nodes whose disks are known has there."""
        table_id, key, cell = place
        found = {}
        for node in nodes:
            if node in self._held:
                partition = self._held[node].get((table_id, key))
                found[node] = _NEVER if partition is None else partition.state(cell)
        return found


def group_of(cluster: ClusterMetadata, table_id: int, key: bytes) -> tuple[NodeId, ...]:
    """Who stores a partition in its tables."""
    table = cluster.table(table_id)
    assert table is not None, "the table is there"
    ring = cluster.placements.ring(cluster.schema.group_of(table))
    return keepers(cluster, ring, ring.range_at(token_in(table, key)))


def check_equal(
    cluster: ClusterMetadata, table_id: int, contents: Mapping[NodeId, DurableContent], purged_s: int
) -> int:
    """All replicas of a table have each cell alike, but for what may be purged: deletions, and values that
    ended before the wall second `purged_s` (0: nothing is purged). The number of cells; raises Violation."""
    replicas = Replicas(contents, (table_id,))
    places = replicas.places()
    for place in places:
        states = replicas.states(place, group_of(cluster, table_id, place[1]))
        left = {_NEVER if purged_s and _may_go(state, purged_s) else state for state in states.values()}
        if len(left) > 1:
            raise Violation("REP-2a", f"all replicas were repaired, and differ in {_shown(place, states)}")
    return len(places)


def check_unchanged(
    cluster: ClusterMetadata,
    table_ids: Sequence[int],
    contents: Mapping[NodeId, DurableContent],
    purged_s: int,
) -> int:
    """What all replicas have marked as unchanged since a repair made it equal is equal, but for what may be
    purged. The number of such cells; raises Violation."""
    replicas, judged = Replicas(contents, table_ids), 0
    for place in replicas.places():
        if cluster.table(place[0]) is None:
            continue
        nodes = group_of(cluster, place[0], place[1])
        token = _token_at(cluster, place)
        if not all(node in contents and _is_marked(contents[node], place, token) for node in nodes):
            continue
        judged += 1
        states = replicas.states(place, nodes)
        left = {_NEVER if purged_s and _may_go(state, purged_s) else state for state in states.values()}
        if len(left) > 1:
            raise Violation("REP-3", f"marked as equal since a repair, and not: {_shown(place, states)}")
    return judged


def _token_at(cluster: ClusterMetadata, place: Place) -> int:
    table = cluster.table(place[0])
    return token_of(place[1]) if table is None else token_in(table, place[1])


def _is_marked(content: DurableContent, place: Place, token: int) -> bool:
    """Whether the part of the place has its bit on the disk (storage.unchanged says where)."""
    bucket = (token + (1 << 63)) >> 48
    segment = content.get(Family.REPAIR.value + place[0].to_bytes(4, "big") + bytes([bucket // 1024]))
    return segment is not None and bool(segment[bucket % 1024 >> 3] & 1 << (bucket & 7))


def _may_go(state: State, purged_s: int) -> bool:
    return state.kind == DELETED or (state.kind == EXPIRES and state.ends_s < purged_s)


class RepairBegun:
    """What disks held of a repair's tables and ranges when it began."""

    def __init__(
        self, cluster: ClusterMetadata, repair: Repair, contents: Mapping[NodeId, DurableContent]
    ) -> None:
        self.repair = repair
        self._tables = tuple(table for part in repair.parts for table in part.tables)
        self._newest: dict[Place, State] = {}
        replicas = Replicas(contents, self._tables)
        for place in replicas.places():
            if cluster.table(place[0]) is not None:
                nodes = self._participants(cluster, place)
                self._newest[place] = max(replicas.states(place, nodes).values(), default=_NEVER)

    def _participants(self, cluster: ClusterMetadata, place: Place) -> list[NodeId]:
        only = self.repair.nodes
        return [node for node in group_of(cluster, place[0], place[1]) if not only or node in only]

    def check_ended(
        self,
        cluster: ClusterMetadata,
        ended: Repair,
        contents: Mapping[NodeId, DurableContent],
        *,
        purges: bool,
    ) -> int:
        """What was found equal has on every participant all that any of them held at the beginning.

        `purges`: a deletion need not be there when nothing is left that it hides. The number of judged cells.
        """
        replicas, judged = Replicas(contents, self._tables), 0
        for place, wanted in self._newest.items():
            if cluster.table(place[0]) is None or not self._is_about(cluster, ended, place):
                continue
            states = replicas.states(place, self._participants(cluster, place))
            judged += 1
            if all(state >= wanted for state in states.values()):
                continue
            hidden = any(state.kind != DELETED and _NEVER < state < wanted for state in states.values())
            if purges and _may_go(wanted, ended.began_s) and not hidden:
                continue
            raise Violation(
                "REP-3",
                f"repair {ended.id} found replicas equal, and some lack {wanted.text()}: "
                f"{_shown(place, states)}",
            )
        return judged

    def _is_about(self, cluster: ClusterMetadata, ended: Repair, place: Place) -> bool:
        token = _token_at(cluster, place)
        if ended.nodes:
            ranges: Iterable[Range] = (
                range_ for part in ended.parts if place[0] in part.tables for range_ in part.ranges
            )
            return ended.state is RepairState.DONE and any(range_.contains(token) for range_ in ranges)
        return any(
            one.epoch == ended.began_epoch and one.range.contains(token)
            for one in cluster.repairs.by_table.get(place[0], ())
        )


def _shown(place: Place, states: Mapping[NodeId, State]) -> str:
    table_id, key, (clustering, column, path) = place
    row = "static" if clustering is None else clustering.hex()
    # The partitions of a log of changes are no text.
    named = key.decode(errors="backslashreplace")
    where = f"table {table_id} {named}[{row}] column {column} {path.hex() if path else ''}"
    return where + ": " + ", ".join(f"node {node} has {state.text()}" for node, state in states.items())
