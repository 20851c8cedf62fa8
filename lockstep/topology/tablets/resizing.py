"""What is next for tables whose number of tablets is to change: from loads, and from what nodes said, to an
entry of the log.

What a replica is ready for: it has applied the decision, every write that it took under an older map is
durable, and it lacks nothing of the tablet. A node's rows lie by token in one store, so there are no files to
cut. What it said holds for the map that it said it of: a tablet that another replica came to is asked for
again.

Invariant: looking changes nothing, and comes to the same for whoever leads. Only what was said at or after
the epoch of a phase counts in it, and only for the number of the decision that stands.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.directory import Directory, NodeState
from lockstep.metadata.table_streams import full, is_late
from lockstep.metadata.tablet_groups import hints_of, hosts_of, shards_by_rack
from lockstep.metadata.tablets import ResizePhase, Resizing, TabletGroup, TabletGroupHead
from lockstep.placement.tablets.counts import CountedTable, CountSettings, Rack, racks_of
from lockstep.placement.tablets.load import Host, LoadStatistics
from lockstep.placement.tablets.map import TabletMap
from lockstep.placement.tablets.resize import (
    Ready,
    Resize,
    ResizedTable,
    ResizeKind,
    average_bytes,
    decide,
    tablet_loads,
    unready,
)
from lockstep.placement.tablets.target import Cluster
from lockstep.schema.model import Schema
from lockstep.topology.tablets.recount import resting
from lockstep.topology.tablets.resizes import (
    AdvanceCaptured,
    AdvanceResize,
    DecideResizes,
    PublishStreams,
    ResizeChange,
    held_by_repair,
    moving,
    obstacle,
    replicas_of,
    unlike,
    unsound,
)
from lockstep.values.ids import NodeId


class Said(msgspec.Struct, frozen=True):
    """What a node said at `epoch`, with all that it took under older ones done: by group, the number of the
    decision that it knows, and the last tokens of tablets that it is ready with."""

    epoch: int
    ready: Mapping[int, tuple[int, frozenset[int]]] = {}


class Heard(msgspec.Struct, frozen=True):
    """`dead`: who seems so. `at_ms`: the wall clock, for streams of changes."""

    said: Mapping[NodeId, Said] = {}
    dead: Collection[NodeId] = ()
    at_ms: int = 0


class Question(msgspec.Struct, frozen=True):
    """Have these nodes say what they are ready for, once they have applied the epoch."""

    epoch: int
    nodes: tuple[NodeId, ...]
    groups: tuple[int, ...]


class Waiting(msgspec.Struct, frozen=True):
    """Why the resize of a table waits, and for which nodes; `for_time`: until a clock says so."""

    group: int
    reason: str
    nodes: tuple[NodeId, ...] = ()
    for_time: bool = False


#: What the leader may submit.
Entry = DecideResizes | AdvanceResize | AdvanceCaptured | PublishStreams


class Looked(msgspec.Struct, frozen=True):
    """An entry, or else whom to ask; `reasons`: what a decision was made for, for the log of the node."""

    entry: Entry | None = None
    question: Question | None = None
    waits: tuple[Waiting, ...] = ()
    reasons: tuple[str, ...] = ()


class Resizer:
    """The coordinator's memory of what it decided, and in which round of statistics tables were resized last:
    they are measured again before anything else is decided of them."""

    def __init__(self, settings: CountSettings) -> None:
        self._settings = settings
        self._basis: _Basis | None = None
        self._decided: tuple[ResizeChange, ...] = ()
        self._reasons: tuple[str, ...] = ()
        self._resized_in: dict[int, int] = {}

    def look(self, cluster: ClusterMetadata, asked: Cluster, heard: Heard) -> Looked:
        """`asked` is the question of the planner for the same value: hosts, maps and statistics."""
        maps = {table.map.id: table.map for table in asked.tables}
        assert maps.keys() == set(cluster.tablets.by_group), "a question about all tables"
        waits: list[Waiting] = []
        entry: Entry | None = None
        for group in cluster.tablets.groups:
            if group.head.resizing.phase is ResizePhase.NONE:
                continue
            found = _next(cluster, group, maps[group.id], asked.hosts, heard)
            if isinstance(found, Waiting):
                waits.append(found)
            elif entry is None:
                entry = found
                if isinstance(found, AdvanceResize) and group.id in cluster.streams_by_group:
                    entry = AdvanceCaptured(found, heard.at_ms)
        changes = self._changes(cluster, asked)
        reasons: tuple[str, ...] = ()
        if entry is None and changes:
            entry, reasons = DecideResizes(cluster.epoch, changes), self._reasons
        if entry is not None and cluster.service.frozen:
            frozen = Waiting(0, f"the metadata is frozen: {cluster.service.frozen}")
            return Looked(None, None, (*waits, frozen))
        return Looked(entry, _question(cluster, waits), tuple(waits), reasons)

    def _changes(self, cluster: ClusterMetadata, asked: Cluster) -> tuple[ResizeChange, ...]:
        """Decided once for what it follows from: it costs as many as there are tablets."""
        basis = _Basis(
            asked.statistics.round,
            cluster.schema,
            cluster.directory,
            tuple([group.head for group in cluster.tablets.groups]),
            cluster.tablets.is_balanced,
            resting(cluster),
        )
        if self._basis is not None and basis.is_like(self._basis):
            return self._decided
        self._basis = basis
        racks = shards_by_rack(hosts_of(cluster))
        groups = cluster.tablets.by_group
        tables = [
            _resized_table(cluster, groups[table.map.id], table.map, asked.statistics, racks)
            for table in asked.tables
        ]
        for group in cluster.tablets.groups:
            if group.head.resizing.phase is ResizePhase.SETTLING:
                self._resized_in[group.id] = asked.statistics.round
        number, former, at_rest = asked.statistics.round, self._resized_in, resting(cluster)
        made = [
            one
            for one in decide(tables, racks, self._settings)
            if _may(cluster, groups[one.group], at_rest) and former.get(one.group, -1) < number
        ]
        self._decided = tuple([ResizeChange(one.group, one.resize) for one in made])
        self._reasons = tuple([f"{_text(groups[one.group], one.resize)}: {one.reason}" for one in made])
        assert len(self._decided) == len(self._reasons), "a decision has its reason"
        return self._decided


class _Basis(msgspec.Struct, frozen=True):
    """What decisions follow from. Moves that end change none: a replica weighs the same elsewhere."""

    round: int
    schema: Schema
    directory: Directory
    heads: tuple[TabletGroupHead, ...]
    is_on: bool
    at_rest: frozenset[str]

    def is_like(self, other: _Basis) -> bool:
        same = self.schema is other.schema and self.directory is other.directory
        return same and (self.round, self.heads, self.is_on, self.at_rest) == (
            other.round,
            other.heads,
            other.is_on,
            other.at_rest,
        )


def _text(group: TabletGroup, resize: Resize) -> str:
    what = "no resize" if resize.kind is ResizeKind.NONE else resize.kind.name.lower()
    return f"{what} {resize.sequence} of {group.head.keyspace}.{group.head.table}"


def _may(cluster: ClusterMetadata, group: TabletGroup, at_rest: Collection[str]) -> bool:
    """Whether the balancer decides of a table now; not where a keyspace may go back to the ring."""
    is_on = cluster.tablets.is_balanced and group.head.is_balanced and group.head.keyspace not in at_rest
    return is_on and group.head.resizing.phase is not ResizePhase.SETTLING


def _resized_table(
    cluster: ClusterMetadata,
    group: TabletGroup,
    map_: TabletMap,
    statistics: LoadStatistics,
    racks: Mapping[Rack, int],
) -> ResizedTable:
    keyspace = cluster.schema.by_name[group.head.keyspace]
    assert map_.id == group.id, "the map of the table"
    assert keyspace.tablets is not None, "a tablet group is of a keyspace with tablets"
    counted = CountedTable(
        group.id,
        racks_of(map_.replication.factors, racks, map_.replication.lists),
        tuple([hints_of(table) for table in keyspace.groups[group.id]]),
        keyspace.tablets.initial,
        map_.count,
        average_bytes(map_, statistics, cluster.directory.dc_by_id.__getitem__),
    )
    resizing = group.head.resizing
    return ResizedTable(map_, counted, resizing.resize, tablet_loads(map_, statistics), resizing.kept)


def _next(
    cluster: ClusterMetadata, group: TabletGroup, map_: TabletMap, hosts: Sequence[Host], heard: Heard
) -> AdvanceResize | PublishStreams | Waiting:
    """What the resize of one table does, or waits for."""
    resizing = group.head.resizing
    assert resizing.phase is not ResizePhase.NONE, "there is something to end"
    step = AdvanceResize(group.id, resizing.epoch)
    if resizing.phase is ResizePhase.SETTLING:
        behind = _behind(cluster, group, map_, heard, resizing.epoch)
        return _unpublished(cluster, group, heard, behind) or behind or _early(cluster, group, heard) or step
    assert resizing.resize.kind is not ResizeKind.NONE, "before its end something is cut or joined"
    apart = unlike(map_, resizing.resize)
    broken = unsound(cluster, map_)
    if resizing.phase is ResizePhase.CLOSING and (broken or apart) and not moving(cluster, group.id):
        return msgspec.structs.replace(step, back=True)
    reason = broken or apart
    if resizing.phase is ResizePhase.CLOSING:
        reason = obstacle(cluster, group, map_) or reason
    else:
        reason = reason or held_by_repair(cluster, group, map_) or _too_many(cluster, group, heard)
    if reason is not None:
        return Waiting(group.id, f"{resizing.title()} waits: {reason}")
    missing = unready(map_, resizing.resize, _ready(map_, resizing, heard), hosts)
    if missing:
        texts = [f"node {node} ({count} tablets)" for node, count in missing]
        nodes = tuple([node for node, _ in missing])
        return Waiting(group.id, f"not ready for {resizing.title()}: {', '.join(texts)}", nodes)
    if resizing.phase is ResizePhase.PREPARING:
        return step
    newest = max(resizing.epoch, *[placed.group.epoch for placed in map_.ring.ranges])
    return _behind(cluster, group, map_, heard, newest) or msgspec.structs.replace(
        step, known_epoch=min([heard.said[node].epoch for node in replicas_of(map_)])
    )


def _ready(map_: TabletMap, resizing: Resizing, heard: Heard) -> Ready:
    """What counts of what was said: in this phase, of the tablets as they are."""
    found: dict[NodeId, dict[int, dict[int, int]]] = {}
    epochs = {placed.range.right: placed.group.epoch for placed in map_.ring.ranges}
    for node, said in heard.said.items():
        if said.epoch >= resizing.epoch and map_.id in said.ready:
            number, rights = said.ready[map_.id]
            found[node] = {
                map_.id: {
                    right: number for right in rights if epochs.get(right, said.epoch + 1) <= said.epoch
                }
            }
    return found


def _behind(
    cluster: ClusterMetadata, group: TabletGroup, map_: TabletMap, heard: Heard, epoch: int
) -> Waiting | None:
    """Who has not applied the epoch yet, of those that hold the table, unless they are shut out or gone, and
    of all others that live, for these may hold the map of before; None where everybody has."""
    holders = dict.fromkeys(replicas_of(map_))
    behind = []
    for node in cluster.directory.nodes:
        if node.state is NodeState.LEFT or node.id in cluster.excluded_by_node:
            continue
        if node.id not in holders and node.id in heard.dead:
            continue
        said = heard.said.get(node.id)
        if said is None or said.epoch < epoch:
            behind.append(node.id)
    if not behind:
        return None
    names = ", ".join([str(node) for node in behind])
    return Waiting(group.id, f"{group.head.resizing.title()}: not yet on node {names}", tuple(behind))


def _too_many(cluster: ClusterMetadata, group: TabletGroup, heard: Heard) -> str | None:
    streams = cluster.streams_by_group.get(group.id)
    return full(cluster.schema, group, streams, heard.at_ms) if streams is not None else None


def _unpublished(
    cluster: ClusterMetadata, group: TabletGroup, heard: Heard, behind: Waiting | None
) -> PublishStreams | None:
    """Of a new map whose streams are not published: they are where it is everywhere, and count later where
    that takes long, so that writes are not refused for their time meanwhile."""
    streams = cluster.streams_by_group.get(group.id)
    if streams is None or streams.newest.is_published:
        return None
    if behind is not None and not is_late(streams.newest, heard.at_ms):
        return None
    return PublishStreams(group.id, streams.newest.epoch, heard.at_ms, are_known=behind is None)


def _early(cluster: ClusterMetadata, group: TabletGroup, heard: Heard) -> Waiting | None:
    """A new map whose streams do not count yet: until they do, rows of the log may be of older ones, which
    lie in the tablets of their changes only while nothing moves."""
    streams = cluster.streams_by_group.get(group.id)
    if streams is None or heard.at_ms >= streams.settled_ms:
        return None
    left_s = (streams.settled_ms - heard.at_ms + 999) // 1000
    reason = f"{group.head.resizing.title()}: its streams of changes count in {left_s} s"
    return Waiting(group.id, reason, for_time=True)


def _question(cluster: ClusterMetadata, waits: Sequence[Waiting]) -> Question | None:
    assert all(wait.reason for wait in waits), "who waits says why"
    nodes = sorted({node for wait in waits for node in wait.nodes})
    # Of all that stand: what a node says takes the place of what it said before.
    groups = [
        one.id for one in cluster.tablets.groups if one.head.resizing.resize.kind is not ResizeKind.NONE
    ]
    return Question(cluster.epoch, tuple(nodes), tuple(groups)) if nodes else None
