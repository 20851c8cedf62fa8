"""The entries by which the tablets of a table become more, or fewer.

Invariant: a table has one decision at a time, each with the next number, and a phase is left by the entry
that names the epoch at which it was entered. The map changes only while nothing of its table is on its way,
no repair holds what is cut or joined, and no replica has left, is shut out, or changed since its readiness
was judged; only tablets with the same replicas become one. A new map has a phase of its own until it is
everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.directory import NodeState
from lockstep.metadata.log.registry import EntryKind
from lockstep.metadata.schema_part import PLACEMENTS
from lockstep.metadata.table_streams import STREAMS, TableStreams, postponed, published, recut
from lockstep.metadata.tablets import TABLETS, ResizePhase, Resizing, TabletGroup
from lockstep.metadata.transformations import refuse_before_initialize
from lockstep.metadata.transitions import Lone, Transition
from lockstep.placement.tablets.map import TabletMap, midpoint
from lockstep.placement.tablets.resize import (
    DECISIONS_MAX,
    EVEN_MAX,
    Resize,
    ResizeKind,
    apart,
    pairs_of,
    resized,
    resized_tablets,
)
from lockstep.schema.tablet_options import TABLET_COUNT_MAX
from lockstep.topology.tablets.drains import drains
from lockstep.values.errors import Rejected
from lockstep.values.ids import NodeId


class ResizeChange(msgspec.Struct, frozen=True, array_like=True):
    """What is decided of the table of a tablet group; no kind takes back what was."""

    group: int
    resize: Resize


class DecideResizes(msgspec.Struct, frozen=True, array_like=True):
    """Decide that tables split or merge their tablets, or do not after all; `plan_epoch` is that of the value
    for which it was decided."""

    plan_epoch: int
    changes: tuple[ResizeChange, ...]

    def apply(self, cluster: ClusterMetadata, epoch: int) -> ClusterMetadata:
        refuse_before_initialize(cluster)
        if self.plan_epoch != cluster.epoch:
            raise Rejected(f"decided at epoch {self.plan_epoch}, and it is {cluster.epoch} by now")
        if cluster.service.frozen:
            raise Rejected(f"no table is resized while the metadata is frozen: {cluster.service.frozen}")
        most = len(cluster.tablets.by_group)
        if not 0 < len(self.changes) <= most or len({one.group for one in self.changes}) < len(self.changes):
            raise Rejected("an entry decides of each table once")
        if sum(one.resize.kind is not ResizeKind.NONE for one in self.changes) > DECISIONS_MAX:
            raise Rejected(f"at most {DECISIONS_MAX} tables begin to be resized at once")
        changed = []
        for one in self.changes:
            group = group_of(cluster, one.group)
            refuse_decision(group, one.resize, group.map(cluster.placements))
            phase = ResizePhase.NONE if one.resize.kind is ResizeKind.NONE else ResizePhase.PREPARING
            changed.append(_with(group, Resizing(one.resize, phase, epoch, group.head.resizing.kept)))
        assert len(changed) == len(self.changes), "all are decided, or none"
        return cluster.changed(TABLETS.set(cluster.tablets.with_groups(changed)))


class AdvanceResize(msgspec.Struct, frozen=True, array_like=True):
    """Have the resize of a table leave the phase that it entered at `phase_epoch`: its moves are to end, then
    its map is the new one, then that is everywhere. `known_epoch`: of the map that was judged to be ready;
    for a new map alone. `back`: moves go on, for nodes are to be emptied, or pairs are apart again."""

    group: int
    phase_epoch: int
    known_epoch: int = 0
    back: bool = False

    def apply(self, cluster: ClusterMetadata, epoch: int) -> ClusterMetadata:
        group = group_of(cluster, self.group)
        if self.group in cluster.streams_by_group:
            raise Rejected(f"changes of {_name(group)} are captured: the entry does not say when it was made")
        return self.advanced(cluster, group, epoch)

    def advanced(self, cluster: ClusterMetadata, group: TabletGroup, epoch: int) -> ClusterMetadata:
        was = group.head.resizing
        if was.epoch != self.phase_epoch or was.phase is ResizePhase.NONE:
            raise Rejected(f"{_name(group)} is {was.phase} since epoch {was.epoch}")
        if self.back and was.phase is not ResizePhase.CLOSING:
            raise Rejected(f"{was.title()} of {_name(group)} is {was.phase}, which has no way back")
        if was.phase is ResizePhase.CLOSING and not self.back:
            return self._resized(cluster, group, epoch)
        phase = {
            ResizePhase.PREPARING: ResizePhase.CLOSING,
            ResizePhase.CLOSING: ResizePhase.PREPARING,
            ResizePhase.SETTLING: ResizePhase.NONE,
        }[was.phase]
        assert phase is not was.phase, "a phase is left"
        changed = _with(group, Resizing(was.resize, phase, epoch, was.kept))
        return cluster.changed(TABLETS.set(cluster.tablets.with_groups((changed,))))

    def _resized(self, cluster: ClusterMetadata, group: TabletGroup, epoch: int) -> ClusterMetadata:
        map_, resizing = group.map(cluster.placements), group.head.resizing
        reason = obstacle(cluster, group, map_) or unlike(map_, resizing.resize)
        if reason is not None:
            raise Rejected(f"{resizing.title()} of {_name(group)} waits: {reason}")
        newest = max(placed.group.epoch for placed in map_.ring.ranges)
        if newest > self.known_epoch:
            raise Rejected(
                f"the map of {_name(group)} changed at {newest}, and {self.known_epoch} was judged"
            )
        made = resized(map_, resizing.resize, epoch)
        is_split = resizing.resize.kind is ResizeKind.SPLIT
        assert made.count <= TABLET_COUNT_MAX, "a decision is bounded"
        assert is_split or made.count < map_.count, "a merge makes fewer tablets"
        assert not is_split or map_.count <= made.count <= 2 * map_.count, "a split makes more"
        # That there is nothing more to do is a decision, too.
        none = Resize(ResizeKind.NONE, resizing.resize.sequence + 1)
        kept = _kept(resizing, made.count)
        head = msgspec.structs.replace(group.head, resizing=Resizing(none, ResizePhase.SETTLING, epoch, kept))
        return cluster.changed(
            PLACEMENTS.set(cluster.placements.with_rings((made.ring,))),
            TABLETS.set(cluster.tablets.with_groups((TabletGroup(head, made.shards),))),
        )


class AdvanceCaptured(msgspec.Struct, frozen=True, array_like=True):
    """As `AdvanceResize`, of a table with a log of changes. `at_ms` is the wall clock of who proposes it: the
    streams of a new map count a while later, and nothing moves until older ones take no write any more."""

    step: AdvanceResize
    at_ms: int

    @property
    def group(self) -> int:
        return self.step.group

    @property
    def back(self) -> bool:
        return self.step.back

    def apply(self, cluster: ClusterMetadata, epoch: int) -> ClusterMetadata:
        group = group_of(cluster, self.group)
        streams = cluster.streams_by_group.get(self.group)
        if streams is None:
            raise Rejected(f"changes of {_name(group)} are not captured")
        phase = group.head.resizing.phase
        is_early = streams.newest.is_pending or self.at_ms < streams.settled_ms
        if phase is ResizePhase.SETTLING and is_early:
            raise Rejected(f"the streams of {_name(group)} do not count yet")
        advanced = self.step.advanced(cluster, group, epoch)
        if phase is not ResizePhase.CLOSING or self.back:
            return advanced
        before, after = (value.placements.ring(group.id) for value in (cluster, advanced))
        made = recut(cluster.schema, group, streams, before, after, self.at_ms, epoch)
        assert made.newest.epoch == epoch, "a new map has streams of its own"
        return advanced.changed(STREAMS.set(_with_streams(cluster, made)))


class PublishStreams(msgspec.Struct, frozen=True, array_like=True):
    """Have the streams that epoch `made_epoch` made for a table's new tablets count, now that every replica
    knows them; or, where not `are_known`, later. `at_ms` is the wall clock of who proposes it."""

    group: int
    made_epoch: int
    at_ms: int
    are_known: bool

    def apply(self, cluster: ClusterMetadata, epoch: int) -> ClusterMetadata:
        group, streams = group_of(cluster, self.group), cluster.streams_by_group.get(self.group)
        if streams is None or streams.newest.epoch != self.made_epoch or streams.newest.is_published:
            raise Rejected(f"no streams of {_name(group)} of epoch {self.made_epoch} are to be published")
        assert group.head.resizing.phase is ResizePhase.SETTLING, "a map settles with its streams"
        made = published(streams, self.at_ms) if self.are_known else postponed(streams, self.at_ms)
        if made == streams:
            raise Rejected(f"the streams of {_name(group)} count later than that")
        return cluster.changed(STREAMS.set(_with_streams(cluster, made)))


def _with_streams(cluster: ClusterMetadata, made: TableStreams) -> tuple[TableStreams, ...]:
    return tuple(made if one.group == made.group else one for one in cluster.parts[STREAMS])


def _kept(resizing: Resizing, count: int) -> int:
    """What a table keeps of its new number of tablets, which somebody gave it or not."""
    if not resizing.resize.by_hand:
        return resizing.kept
    return count if resizing.resize.kind is ResizeKind.SPLIT else min(resizing.kept, count)


def group_of(cluster: ClusterMetadata, group_id: int) -> TabletGroup:
    group = cluster.tablets.by_group.get(group_id)
    if group is None:
        raise Rejected(f"group {group_id} is of no table with tablets")
    return group


def _name(group: TabletGroup) -> str:
    return f"{group.head.keyspace}.{group.head.table}"


def _with(group: TabletGroup, resizing: Resizing) -> TabletGroup:
    assert resizing.epoch > group.head.resizing.epoch, "phases follow each other"
    head = msgspec.structs.replace(group.head, resizing=resizing)
    return TabletGroup(head, group.shards)


def refuse_decision(group: TabletGroup, wanted: Resize, map_: TabletMap) -> None:
    """Raises Rejected where a decision does not follow that which stands, or cannot be carried out."""
    known, name = group.head.resizing, _name(group)
    if wanted.sequence != known.resize.sequence + 1:
        raise Rejected(f"decision {wanted.sequence} of {name} does not follow {known.resize.sequence}")
    if known.phase is ResizePhase.SETTLING:
        raise Rejected(f"{name} has a new map since epoch {known.epoch}, which is not everywhere yet")
    if (known.phase is ResizePhase.NONE) is (wanted.kind is ResizeKind.NONE):
        raise Rejected(f"{name} is {known.phase}: one decision stands until it is taken back")
    if len(wanted.rights) > EVEN_MAX or list(wanted.rights) != sorted(set(wanted.rights)):
        raise Rejected(f"at most {EVEN_MAX} tablets of {name} are resized alone, each once")
    if any(map_.ending(right) is None for right in wanted.rights):
        raise Rejected(f"a tablet of {name} is not there")
    if wanted.kind is ResizeKind.SPLIT:
        _refuse_split(name, wanted, map_)
    elif wanted.kind is ResizeKind.MERGE:
        _refuse_merge(name, wanted, map_)


def _refuse_split(name: str, wanted: Resize, map_: TabletMap) -> None:
    if map_.count + (len(wanted.rights) or map_.count) > TABLET_COUNT_MAX:
        raise Rejected(f"{name} would have more than {TABLET_COUNT_MAX} tablets")
    for tablet in resized_tablets(map_, wanted) if wanted.rights else ():
        if midpoint(tablet.range) is None:
            raise Rejected(f"the tablet of {name} that ends at {tablet.right} has one token")


def _refuse_merge(name: str, wanted: Resize, map_: TabletMap) -> None:
    if not map_.merges:
        raise Rejected(
            f"tablets of {name} are not merged: its keyspace has witnesses, and a pair that lies on the same "
            "nodes may have another witness each",
            hint="split what is too wide instead, or keep the table where factors name no witnesses",
        )
    rights = [placed.range.right for placed in map_.ring.ranges]
    if len(rights) == 1 or rights[-1] in wanted.rights:
        raise Rejected(f"the last tablet of {name} has none behind it")
    alone = wanted.isolated
    if alone is not None and (len(rights) % 2 == 0 or wanted.rights or alone not in rights[::2]):
        raise Rejected(f"the tablet of {name} that ends at {alone} cannot be left alone")
    joined = [right for pair in pairs_of(map_, wanted) for right in pair]
    if len(set(joined)) < len(joined):
        raise Rejected(f"a tablet of {name} would be merged with both its neighbours")


def touched(map_: TabletMap, resize: Resize) -> tuple[int, ...]:
    """The last tokens of the tablets that are cut or joined."""
    return tuple(one.right for one in resized_tablets(map_, resize))


def unlike(map_: TabletMap, resize: Resize) -> str | None:
    """Why pairs cannot be merged yet; None where nothing is, or they are in the same places."""
    pairs = apart(map_, resize) if resize.kind is ResizeKind.MERGE else []
    return f"{len(pairs)} pairs are not in the same places" if pairs else None


def obstacle(cluster: ClusterMetadata, group: TabletGroup, map_: TabletMap) -> str | None:
    """What must end before the map of a table may change; None where there is nothing."""
    on_its_way = moving(cluster, group.id)
    if on_its_way:
        return f"{on_its_way} of its tablets are on their way"
    return held_by_repair(cluster, group, map_) or unsound(cluster, map_)


def held_by_repair(cluster: ClusterMetadata, group: TabletGroup, map_: TabletMap) -> str | None:
    """The repair, or what holds ranges as one does, of tablets that are to be cut or joined."""
    if not cluster.repairs.running:
        return None
    assert group.head.resizing.resize.kind is not ResizeKind.NONE, "something is cut or joined"
    rights = dict.fromkeys(touched(map_, group.head.resizing.resize))
    for repair in cluster.repairs.running:
        ranges = [range_ for part in repair.parts if part.group == group.id for range_ in part.ranges]
        for range_ in ranges:
            if any(placed.range.right in rights for placed in map_.ring.overlapping(range_)):
                return f"{repair.title()} holds its tablets"
    return None


def holder_text(cluster: ClusterMetadata, one: Transition) -> str:
    """What has a tablet that is on its way."""
    operation = cluster.operations_by_id.get(one.operation_id)
    return operation.title() if operation is not None else Lone(one).title()


def moving(cluster: ClusterMetadata, group: int) -> int:
    """How many tablets of a group are on their way; costs as many as there are of all groups."""
    if not cluster.transitions.count:
        return 0
    found = sum(one.group == group for _, one in cluster.transitions.tree.items())
    assert found <= cluster.placements.ring(group).count, "a tablet has one transition at a time"
    return found


def replicas_of(map_: TabletMap) -> tuple[NodeId, ...]:
    """The nodes that hold tablets of a map, ascending."""
    return tuple(sorted({node for placed in map_.ring.ranges for node in placed.group.reads}))


def unsound(cluster: ClusterMetadata, map_: TabletMap) -> str | None:
    """The first replica that can be ready for nothing: its tablets must be elsewhere before."""
    leaving = drains(cluster)
    for node in replicas_of(map_):
        info = cluster.node(node)
        if info is None or info.state is NodeState.LEFT:
            return f"node {node} has left, and its tablets are not built anew yet"
        if node in cluster.excluded_by_node:
            return f"node {node} is excluded"
        if node in leaving:
            return f"node {node} is to be emptied first"
    return None


def refuse_held_still(cluster: ClusterMetadata, group: TabletGroup, source: NodeId) -> None:
    """Raises Rejected for a move while the tablets of its table are about to be others, but for one that
    empties a node: there the resize waits."""
    resizing = group.head.resizing
    if not resizing.holds_still:
        return
    info = cluster.node(source)
    if info is None or info.state is NodeState.LEFT or source in drains(cluster):
        return
    raise Rejected(
        f"no tablet of {_name(group)} moves: {resizing.title()} is {resizing.phase}",
        hint=f"wait for its end (`lockstep tablets list {group.head.keyspace}` shows it)",
    )


KINDS: Final[Mapping[int, type[Any]]] = {
    EntryKind.DECIDE_RESIZES: DecideResizes,
    EntryKind.ADVANCE_RESIZE: AdvanceResize,
    EntryKind.ADVANCE_CAPTURED: AdvanceCaptured,
    EntryKind.PUBLISH_STREAMS: PublishStreams,
}
