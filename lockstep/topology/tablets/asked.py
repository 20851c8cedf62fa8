"""The entry by which somebody has a table split or merge its tablets: all of them, or one, or one pair.

Invariant: it asks for a decision as the balancer makes it, with the next number, and what follows is the
same; so rows stay where they are, and requests go on. It is refused where another decision stands, where the
options of the table ask for another number, and where nobody would bring a pair together. What was asked for
is taken back by hand alone, and a table keeps the number that it got so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.log.registry import EntryKind
from lockstep.metadata.tablet_groups import hints_of, hosts_of, shards_by_rack
from lockstep.metadata.tablets import TABLETS, ResizePhase, Resizing, TabletGroup
from lockstep.metadata.transformations import refuse_before_initialize
from lockstep.placement.tablets.counts import CountedTable, CountSettings, CountWish, counts, racks_of
from lockstep.placement.tablets.map import TabletMap
from lockstep.placement.tablets.resize import Resize, ResizeKind, apart, resized_tablets
from lockstep.schema.model import Keyspace
from lockstep.topology.tablets.recount import resting
from lockstep.topology.tablets.resizes import group_of, holder_text, refuse_decision
from lockstep.values.errors import Rejected


class AskResize(msgspec.Struct, frozen=True, array_like=True):
    """Split or merge the tablets of a group. `right`: the last token of the one that is split alone, or of
    the first one of the pair that is merged. No kind takes back what is decided and has not ended."""

    group: int
    kind: ResizeKind
    right: int | None = None

    def apply(self, cluster: ClusterMetadata, epoch: int) -> ClusterMetadata:
        refuse_before_initialize(cluster)
        if cluster.service.frozen:
            raise Rejected(
                f"no table is resized while the metadata is frozen: {cluster.service.frozen}",
                hint="`lockstep cms thaw`",
            )
        group = group_of(cluster, self.group)
        known, map_ = group.head.resizing, group.map(cluster.placements)
        wanted = self.wanted(group, map_)
        if self.kind is ResizeKind.NONE:
            _refuse_taking_back(group)
            phase = ResizePhase.NONE
        else:
            _refuse_busy(cluster, group)
            refuse_decision(group, wanted, map_)
            _refuse_moving(cluster, group, map_, wanted)
            _refuse_count(cluster, group, map_, wanted)
            _refuse_apart(cluster, group, map_, wanted)
            phase = ResizePhase.PREPARING
        head = msgspec.structs.replace(group.head, resizing=Resizing(wanted, phase, epoch, known.kept))
        assert head.resizing.resize.sequence == known.resize.sequence + 1, "decisions follow each other"
        return cluster.changed(TABLETS.set(cluster.tablets.with_groups((TabletGroup(head, group.shards),))))

    def wanted(self, group: TabletGroup, map_: TabletMap) -> Resize:
        """The decision that is asked for."""
        sequence = group.head.resizing.resize.sequence + 1
        if self.kind is ResizeKind.NONE:
            return Resize(ResizeKind.NONE, sequence)
        rights = () if self.right is None else (self.right,)
        is_odd = self.kind is ResizeKind.MERGE and not rights and map_.count % 2 == 1 and map_.count > 1
        isolated = map_.ring.ranges[-1].range.right if is_odd else None
        return Resize(self.kind, sequence, rights, isolated, by_hand=True)


def count_after(map_: TabletMap, resize: Resize) -> int:
    """How many tablets there are once a decision has been carried out."""
    if resize.kind is ResizeKind.SPLIT:
        return map_.count + (len(resize.rights) or map_.count)
    if resize.kind is ResizeKind.MERGE:
        left = map_.count - (len(resize.rights) or map_.count // 2)
        assert left >= 1, "a merge leaves a tablet"
        return left
    return map_.count


def _name(group: TabletGroup) -> str:
    return f"{group.head.keyspace}.{group.head.table}"


def _refuse_taking_back(group: TabletGroup) -> None:
    known = group.head.resizing
    assert known.resize.sequence >= 0, "decisions are numbered"
    if known.phase is ResizePhase.NONE:
        raise Rejected(f"no split or merge of {_name(group)} is decided")
    if known.phase is ResizePhase.SETTLING:
        raise Rejected(f"{_name(group)} has its new map since epoch {known.epoch}: there is no way back")


def _refuse_busy(cluster: ClusterMetadata, group: TabletGroup) -> None:
    known = group.head.resizing
    if known.phase is not ResizePhase.NONE:
        raise Rejected(
            f"{_name(group)} is resized already: {known.title()} is {known.phase}",
            hint=f"wait for its end (`lockstep tablets list {group.head.keyspace}` shows it)",
        )
    if group.head.keyspace in resting(cluster):
        raise Rejected(
            f"keyspace {group.head.keyspace} is on its way from the ring, or changes its replication",
            hint=f"`lockstep tablets migrate {group.head.keyspace} status`, `lockstep topology list`",
        )


def _refuse_moving(cluster: ClusterMetadata, group: TabletGroup, map_: TabletMap, wanted: Resize) -> None:
    """A whole table waits for its tablets that move; one that somebody names is refused."""
    for tablet in resized_tablets(map_, wanted) if wanted.rights else ():
        found = cluster.transitions.at(group.id, tablet.right)
        if found is not None:
            where = f"the tablet of {_name(group)} up to {tablet.right}"
            raise Rejected(
                f"{where} is on its way: {holder_text(cluster, found)}",
                hint="`lockstep tablets status` shows how many move",
            )


def _refuse_count(cluster: ClusterMetadata, group: TabletGroup, map_: TabletMap, wanted: Resize) -> None:
    after = count_after(map_, wanted)
    if after < map_.count:
        floor = asked_counts(cluster)[group.id]
        if after < floor.count:
            raise Rejected(
                f"{_name(group)} would have {after} tablets, and {floor.count} are asked for: {floor.rule}",
                hint="ALTER TABLE ... WITH tablets = {'min_tablet_count': ...} says how few there may be",
            )
        return
    keyspace = cluster.schema.by_name[group.head.keyspace]
    assert after > map_.count, "a split makes more"
    caps = [
        hints.max_tablet_count for hints in map(hints_of, keyspace.groups[group.id]) if hints.max_tablet_count
    ]
    if caps and after > min(caps):
        raise Rejected(f"{_name(group)} would have {after} tablets, and max_tablet_count is {min(caps)}")


def _refuse_apart(cluster: ClusterMetadata, group: TabletGroup, map_: TabletMap, wanted: Resize) -> None:
    if wanted.kind is not ResizeKind.MERGE or cluster.tablets.is_balanced:
        return
    pairs = apart(map_, wanted)
    assert len(pairs) <= map_.count // 2, "a tablet is in one pair"
    if pairs:
        raise Rejected(
            f"{len(pairs)} pairs of {_name(group)} do not lie on the same nodes, the first up to "
            f"{pairs[0][0]}, and the balancer, which would bring them together, is off",
            hint="`lockstep tablets balance on`, or `lockstep tablets move`",
        )


def asked_counts(cluster: ClusterMetadata) -> dict[int, CountWish]:
    """How many tablets options and nodes ask for, by group, whatever they weigh."""
    racks = shards_by_rack(hosts_of(cluster))
    found = []
    for group in cluster.tablets.groups:
        keyspace: Keyspace = cluster.schema.by_name[group.head.keyspace]
        assert keyspace.tablets is not None, "a tablet group is of a keyspace with tablets"
        replication = keyspace.replication
        hints = tuple([hints_of(table) for table in keyspace.groups[group.id]])
        found.append(
            CountedTable(
                group.id,
                racks_of(replication.factors, racks, replication.lists),
                hints,
                keyspace.tablets.initial,
            )
        )
    return counts(found, racks, CountSettings())


KINDS: Final[Mapping[int, type[Any]]] = {EntryKind.ASK_RESIZE: AskResize}
