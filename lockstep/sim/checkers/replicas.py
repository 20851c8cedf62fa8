"""What replicas' disks certainly hold, and whether acknowledged writes are on enough of them.

PLC-3 and REP-1 from the other side: not what clients saw, but what would survive if every node lost its
power now. Invariant: only bytes covered by a finished sync count, decoded without the storage engine. What a
quorum of one data centre acknowledged is on the quorums of that one, and of all when it has no replicas now.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.transitions import Transition
from lockstep.placement.quorums import dc_factors, majority
from lockstep.schema.model import Replication
from lockstep.sim.checkers.registers import (
    NOTHING,
    Place,
    State,
    bound_of,
    has_quorum,
    scopes_of,
    state_after,
)
from lockstep.sim.checkers.violation import Violation
from lockstep.sim.door import KEYSPACE, clustering_bytes
from lockstep.sim.load.history import Change, Event, Outcome
from lockstep.sim.runtime.disk import SimDisk
from lockstep.storage.journal_records import ENTRIES, RECORD
from lockstep.storage.rows import keys
from lockstep.storage.rows.fragments import decode_header, decode_row, fragments_of
from lockstep.storage.store import Family
from lockstep.topology.roles import keepers, promoted
from lockstep.values import codec, limits
from lockstep.values.errors import CorruptFile
from lockstep.values.ids import NodeId
from lockstep.values.tokens import Range, token_of

_OPERATIONS = codec.decoder(list[tuple[Any, ...]])
_PAIRS = codec.decoder(list[tuple[bytes, bytes]])
_STORE = "store"
_FRAGMENT = Family.DATA.value
#: How keys of mutations in the journal begin.
_ENTRY = Family.JOURNAL.value + RECORD


class _Partition:
    """What won in each row of one partition on one disk."""

    __slots__ = ("deletion", "ranges", "rows", "token")

    def __init__(self, token: int) -> None:
        #: Under which it is stored.
        self.token = token
        self.deletion = NOTHING
        self.ranges: list[tuple[bytes, bytes, State]] = []
        self.rows: dict[bytes, State] = {}

    def state(self, clustering: bytes) -> State:
        newest = max(self.deletion, self.rows.get(clustering, NOTHING))
        for start, end, state in self.ranges:
            if start <= clustering and (not end or clustering < end):
                newest = max(newest, state)
        return newest


class DurableContent:
    """The content of one disk's store, kept up to date by reading what was appended."""

    def __init__(self, disk: SimDisk) -> None:
        self.disk = disk
        self._pairs: dict[bytes, bytes] = {}
        self._log = ""
        self._read = b""
        #: Fragments of tables by partition: (table, key) -> store key -> value; None: nobody has asked yet.
        self._fragments: dict[tuple[int, bytes], dict[bytes, bytes]] | None = None
        self._partitions: dict[tuple[int, bytes], _Partition] = {}
        #: Partitions that changed since they were folded.
        self._stale: dict[tuple[int, bytes], None] = {}
        self._entries: dict[tuple[int, bytes], _Partition] | None = None

    def state(self, table_id: int, key: bytes, clustering: bytes) -> State:
        """What the newest write that certainly reached the row left there."""
        partition = self._folded().get((table_id, key))
        return NOTHING if partition is None else partition.state(clustering)

    def witnessed(self, table_id: int, key: bytes, clustering: bytes) -> State:
        """What the newest mutation in the journal leaves in the row."""
        partition = self._folded_entries().get((table_id, key))
        return NOTHING if partition is None else partition.state(clustering)

    def held(self, table_ids: Collection[int], tokens: Range) -> int:
        """How many partitions of the tables have something stored in the range."""
        return sum(
            1
            for (table_id, _), partition in self._folded().items()
            if table_id in table_ids and tokens.contains(partition.token)
        )

    def pairs(self, table_ids: Collection[int]) -> Iterable[tuple[bytes, bytes]]:
        """The stored fragments of the tables, in no order."""
        for store_key, value in self._pairs.items():
            if store_key[:1] == _FRAGMENT and int.from_bytes(store_key[1:5], "big") in table_ids:
                yield store_key, value

    def records(self, lower: bytes, upper: bytes) -> dict[bytes, bytes]:
        """What is stored between two keys."""
        return {key: value for key, value in self._pairs.items() if lower <= key < upper}

    def get(self, store_key: bytes) -> bytes | None:
        return self._pairs.get(store_key)

    def refresh(self) -> None:
        prefix = f"{_STORE}/checkpoint-"
        generation = max(
            (int(name.rpartition("-")[2]) for name in self.disk.durable_names() if name.startswith(prefix)),
            default=0,
        )
        log = f"{_STORE}/log-{generation}"
        content = self.disk.durable_content(log)
        if log != self._log or not content.startswith(self._read):
            self._log, self._read = log, b""
            pairs: dict[bytes, bytes] = {}
            for body in _bodies(self.disk.durable_content(f"{prefix}{generation}")):
                pairs.update(_PAIRS.decode(body))
            self._replace(pairs)
        if len(content) > len(self._read):
            self._append(content)

    def _append(self, content: bytes) -> None:
        taken = len(self._read)
        records = codec.scan_records(
            self._log, content[taken:], record_bytes_max=limits.MODEL_STORE_RECORD_BYTES_MAX
        )
        try:
            found = list(records)
        except CorruptFile:
            # A store that was damaged holds nothing for certain.
            self._log = ""
            self._replace({})
            return
        for _, body in found:
            for operation in _OPERATIONS.decode(body):
                self._apply(operation)
        if found:
            self._read = content[: taken + found[-1][0]]

    def _replace(self, pairs: dict[bytes, bytes]) -> None:
        """A checkpoint differs little from the log before it."""
        for store_key in [known for known in self._pairs if known not in pairs]:
            self._delete(store_key)
        for store_key, value in pairs.items():
            if self._pairs.get(store_key) != value:
                self._put(store_key, value)

    def _apply(self, operation: tuple[Any, ...]) -> None:
        if operation[0] == "put":
            self._put(operation[1], operation[2])
        elif operation[0] == "delete":
            self._delete(operation[1])
        else:
            lower, upper = operation[1], operation[2]
            for key in [key for key in self._pairs if lower <= key < upper]:
                self._delete(key)

    def _put(self, store_key: bytes, value: bytes) -> None:
        self._pairs[store_key] = value
        if self._fragments is not None and store_key[:1] == _FRAGMENT:
            place = _place(store_key)
            self._fragments.setdefault(place, {})[store_key] = value
            self._stale[place] = None
        elif store_key.startswith(_ENTRY):
            self._entries = None

    def _delete(self, store_key: bytes) -> None:
        if self._pairs.pop(store_key, None) is None:
            return
        if self._fragments is not None and store_key[:1] == _FRAGMENT:
            place = _place(store_key)
            del self._fragments[place][store_key]
            self._stale[place] = None
        elif store_key.startswith(_ENTRY):
            self._entries = None

    def _folded(self) -> dict[tuple[int, bytes], _Partition]:
        if self._fragments is None:
            self._fragments = {}
            for store_key, value in self._pairs.items():
                if store_key[:1] == _FRAGMENT:
                    self._fragments.setdefault(_place(store_key), {})[store_key] = value
            self._stale = dict.fromkeys(self._fragments)
        for place in self._stale:
            self._partitions.pop(place, None)
            for store_key, value in self._fragments[place].items():
                self._fold(store_key, value, self._partitions)
        self._stale.clear()
        return self._partitions

    def _folded_entries(self) -> dict[tuple[int, bytes], _Partition]:
        if self._entries is None:
            found: dict[tuple[int, bytes], _Partition] = {}
            for store_key, value in self._pairs.items():
                mutation = ENTRIES.decode(value).mutation if store_key.startswith(_ENTRY) else None
                if mutation is None:
                    continue
                # As a store that has nothing else would have it.
                prefix = keys.partition_prefix(mutation.table_id, mutation.token, mutation.key)
                for _, fragment_key, fragment in fragments_of(mutation, prefix):
                    self._fold(fragment_key, fragment, found)
            self._entries = found
        return self._entries

    def _fold(self, store_key: bytes, value: bytes, into: dict[tuple[int, bytes], _Partition]) -> None:
        token, key, prefix = keys.split_partition(store_key)
        table_id = int.from_bytes(store_key[1:5], "big")
        partition = into.setdefault((table_id, key), _Partition(token))
        if store_key[len(prefix) : len(prefix) + 1] == keys.KIND_HEADER:
            header = decode_header(store_key, value)
            if header.deletion is not None:
                partition.deletion = max(partition.deletion, (header.deletion.timestamp_us, b""))
            for gone in header.range_deletions:
                partition.ranges.append((gone.start, gone.end, (gone.deletion.timestamp_us, b"")))
            return
        clustering = keys.clustering_of(store_key, prefix)
        row = decode_row(store_key, value, clustering)
        states = [(cell.timestamp_us, cell.value or b"") for cell in row.cells]
        states += [(part.timestamp_us, b"") for part in (row.liveness, row.deletion) if part is not None]
        states += [(gone.deletion.timestamp_us, b"") for gone in row.column_deletions]
        partition.rows[clustering] = max(partition.rows.get(clustering, NOTHING), *states, NOTHING)


def _place(store_key: bytes) -> tuple[int, bytes]:
    """(table, key) of a fragment."""
    return int.from_bytes(store_key[1:5], "big"), keys.split_partition(store_key)[1]


def _bodies(content: bytes) -> Iterable[bytes]:
    for _, body in codec.scan_records("", content, record_bytes_max=limits.MODEL_STORE_RECORD_BYTES_MAX):
        yield body


class AcknowledgedWrites:
    """The newest acknowledged write of each register that a quorum read of a scope must meet, by scope;
    `deletions`: the newest deletion of each that may have had an effect."""

    def __init__(self, events: Sequence[Event], rows_per_partition: int) -> None:
        self.newest: dict[str, dict[Place, State]] = {scope: {} for scope in scopes_of(events)}
        self.deletions: dict[Place, State] = {}
        for event in events:
            change = event.request
            if isinstance(change, Change) and not change.puts and event.outcome is not Outcome.FAILED:
                _take(self.deletions, change, rows_per_partition)
            if isinstance(change, Change) and event.outcome is Outcome.OK:
                for scope, newest in self.newest.items():
                    if has_quorum(event, scope):
                        _take(newest, change, rows_per_partition)


def _take(newest: dict[Place, State], change: Change, rows_per_partition: int) -> None:
    for clustering in range(rows_per_partition):
        if change.touches(clustering):
            place = (change.table, change.key, clustering)
            newest[place] = max(newest.get(place, NOTHING), state_after(change, clustering))


def check_wiped(
    cluster: ClusterMetadata, moving: Sequence[Transition], content: DurableContent, node: NodeId
) -> None:
    """A replica that becomes pending has nothing left of the ranges it gains: what was purged elsewhere
    could return from it."""
    content.refresh()
    dc_of = cluster.directory.dc_by_id.__getitem__
    for transition in moving:
        if node in transition.gained or node in promoted(transition, dc_of):
            tables = [table.id for table in cluster.schema.tables_in(transition.group)]
            if held := content.held(tables, transition.range):
                raise Violation(
                    "REP-3",
                    f"node {node} becomes pending for {transition.range} and still holds {held} partitions",
                )


def check_held(
    invariant: str,
    cluster: ClusterMetadata,
    newest: Mapping[str, Mapping[Place, State]],
    contents: Mapping[NodeId, DurableContent],
    only: Mapping[int, Sequence[Range]] | None = None,
    gone: Sequence[NodeId] = (),
    purges: Mapping[Place, State] | None = None,
) -> int:
    """Every read quorum of each range meets a replica that durably holds the newest acknowledged write.

    `newest` is by scope, as AcknowledgedWrites has it.
    `only` limits the check to some ranges; `gone` are nodes that never answer again, so no
    quorum has them. `purges`: where deletions may be gone, the newest one of each register that may have
    had an effect; it need not be held, nor what it hides, once nothing is left of that. Returns how many
    registers were judged.
    """
    for content in contents.values():
        content.refresh()
    judged = 0
    single = len(newest) == 1
    wanted_of = [(scope, place, state) for scope, places in newest.items() for place, state in places.items()]
    for scope, (table_name, key, clustering), wanted in wanted_of:
        table = cluster.schema.table(KEYSPACE, table_name)
        if table is None:
            continue
        group, token = cluster.schema.group_of(table), token_of(key)
        if only is not None and not any(r.contains(token) for r in only.get(group, ())):
            continue
        readers = [node for node in cluster.group_for(group, token).reads if node not in gone]
        row = clustering_bytes(clustering)
        states = {node: contents[node].state(table.id, key, row) for node in readers if node in contents}
        ring = cluster.placements.ring(group)
        if ring.replication.has_witnesses:
            keeping = keepers(cluster, ring, ring.range_at(token))
            for node in [node for node in states if node not in keeping]:
                states[node] = contents[node].witnessed(table.id, key, row)
        judged += 1
        place = (table_name, key, clustering)
        if purges is not None:
            hiding = max(wanted, purges.get(place, NOTHING))
            if not hiding[1] and not any(state[1] and state < hiding for state in states.values()):
                continue
        lacking = [node for node in readers if states.get(node, NOTHING) < wanted]
        for dc, quorum in _quorums(cluster.placements.ring(group).replication, scope, single):
            there = [n for n in lacking if not dc or cluster.directory.dc_by_id[n] == dc]
            if len(there) >= quorum:
                raise Violation(
                    invariant,
                    f"at epoch {cluster.epoch} a read quorum {there} of {list(readers)} lacks "
                    f"{bound_of(wanted)} of {table_name}/{key.decode()}[{clustering}]; "
                    f"disks hold {states}",
                )
    return judged


def _quorums(replication: Replication, scope: str, single: bool) -> list[tuple[str, int]]:
    """(data centre, how many of its readers make a quorum) that must meet the writes of a scope."""
    everywhere = ("", majority(replication.total))
    by_dc = {dc: (dc, majority(factor)) for dc, factor in dc_factors(replication)}
    if single:
        return [everywhere, *by_dc.values()]
    # A data centre that gave its replicas up has handed on what it acknowledged.
    return [by_dc.get(scope, everywhere)]
