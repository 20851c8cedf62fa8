"""The entry by which a keyspace with tables goes from the ring to tablets, and back.

Invariant: nothing moves with it. At first each table has the ring's ranges as its tablets, with the replicas
and epochs that these have; so every request that was planned before holds afterwards. Until it is finished
nothing moves there for balance, and the way back is an entry too, as long as tablets lie where the ring does.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.conflicts import Held, holders
from lockstep.metadata.degraded import DEGRADED, carried, of_groups
from lockstep.metadata.log.registry import EntryKind
from lockstep.metadata.requests import keyspace_busy
from lockstep.metadata.schema_change import shared_group
from lockstep.metadata.schema_part import PLACEMENTS, SCHEMA
from lockstep.metadata.tablets import TABLETS, TabletGroup, TabletGroupHead, lies_with
from lockstep.metadata.transformations import refuse_before_initialize
from lockstep.placement.deltas import computed_ring
from lockstep.placement.placements import RingPlacement
from lockstep.placement.strategies import NETWORK_TOPOLOGY
from lockstep.schema.changes import SYSTEM_KEYSPACES
from lockstep.schema.log_tables import captures
from lockstep.schema.model import Keyspace, Table
from lockstep.schema.tablet_options import KeyspaceTablets
from lockstep.schema.tracking import is_tracked
from lockstep.values.errors import OperationRunning, Rejected


class Step(enum.StrEnum):
    START = "start"
    FINALIZE = "finalize"
    ROLLBACK = "rollback"


class MigrateKeyspace(msgspec.Struct, frozen=True, array_like=True):
    """`start` gives each table tablets, `finalize` lets the balancer move them and ends the way back, which
    `rollback` takes."""

    keyspace: str
    step: Step

    def apply(self, cluster: ClusterMetadata, epoch: int) -> ClusterMetadata:
        refuse_before_initialize(cluster)
        keyspace = _found(cluster, self.keyspace)
        _refuse_busy(cluster, keyspace)
        if self.step is Step.START:
            return _started(cluster, keyspace, epoch)
        if keyspace.tablets is None or not keyspace.tablets.from_ring:
            raise Rejected(f"keyspace {keyspace.name} is not on its way from the ring to tablets")
        if self.step is Step.ROLLBACK:
            return _taken_back(cluster, keyspace, epoch)
        tablets = msgspec.structs.replace(keyspace.tablets, from_ring=False)
        ended = msgspec.structs.replace(keyspace, tablets=tablets, epoch=epoch)
        return cluster.changed(SCHEMA.set(cluster.schema.with_keyspace(ended)))


def _found(cluster: ClusterMetadata, name: str) -> Keyspace:
    keyspace = cluster.schema.by_name.get(name)
    if name in SYSTEM_KEYSPACES or keyspace is None:
        raise Rejected(f"there is no keyspace {name} that could have tablets", keyspace=name)
    return keyspace


def _refuse_busy(cluster: ClusterMetadata, keyspace: Keyspace) -> None:
    """Raises Rejected while something else counts on where the keyspace lies."""
    what = f"keyspace {keyspace.name} does not go from the ring to tablets, or back,"
    request = cluster.requests.by_keyspace.get(keyspace.name)
    if request is not None:
        raise keyspace_busy(request)
    if any(is_tracked(keyspace, table) for table in keyspace.tables):
        raise Rejected(f"{what} while its tables are tracked", hint="alter it to untracked first")
    moving = holders(cluster, Held.RING)
    if moving:
        hint = "wait for it to finish (`lockstep topology watch`) or cancel it"
        raise OperationRunning(f"{what} while {', '.join(moving)} holds ranges", hint=hint)
    for repair in cluster.repairs.running:
        if any(part.keyspace == keyspace.name for part in repair.parts):
            raise Rejected(
                f"{what} during {repair.title()}", hint="wait for its end (`lockstep repair status`)"
            )
    alone = cluster.transitions.lone_count
    if alone and any(one.group in keyspace.groups for _, one in cluster.transitions.tree.items()):
        raise Rejected(f"{what} while its tablets move", hint="`lockstep tablets status` shows how many do")


def _started(cluster: ClusterMetadata, keyspace: Keyspace, epoch: int) -> ClusterMetadata:
    ring = _fit(cluster, keyspace)
    assert ring.id == keyspace.group, "tablets begin as the keyspace's own ring"
    moved = msgspec.structs.replace(
        keyspace, group=0, tablets=KeyspaceTablets(enabled=True, from_ring=True), epoch=epoch
    )
    schema, placements, tablets = cluster.schema.with_keyspace(moved), cluster.placements, cluster.tablets
    degraded = dict.fromkeys(cluster.degraded)
    left = [line for line in cluster.degraded if line.group == ring.id]
    beside: list[tuple[Table, Table]] = []
    for table in sorted(keyspace.tables, key=lambda one: one.id):
        base = lies_with(table, schema)
        if base is not None:
            beside.append((table, base))
            continue
        made = ring.with_id(placements.next_id)
        placements = placements.with_rings((made,))
        tablets = tablets.with_groups((TabletGroup(TabletGroupHead(made.id, keyspace.name, table.name)),))
        schema = schema.with_table(msgspec.structs.replace(table, group=made.id))
        degraded.update(dict.fromkeys(carried(left, keyspace.name, made.id)))
    for table, base in beside:
        group = schema.by_name[keyspace.name].by_name[base.name].group
        schema = schema.with_table(msgspec.structs.replace(table, group=group))
    assert all(table.group for table in schema.by_name[keyspace.name].tables), "each table lies somewhere"
    if not any(other.group == ring.id for other in schema.keyspaces):
        placements = placements.without((ring.id,))
    return cluster.changed(
        SCHEMA.set(schema),
        PLACEMENTS.set(placements),
        TABLETS.set(tablets),
        DEGRADED.set(of_groups(tuple(degraded), placements.by_id)),
    )


def _fit(cluster: ClusterMetadata, keyspace: Keyspace) -> RingPlacement:
    """Its ring, whose ranges can be tablets; raises Rejected."""
    if keyspace.tablets is not None:
        raise Rejected(f"the tables of keyspace {keyspace.name} have tablets already", keyspace=keyspace.name)
    if keyspace.replication.strategy != NETWORK_TOPOLOGY:
        raise Rejected(
            f"tablets need {NETWORK_TOPOLOGY}, keyspace {keyspace.name} is replicated by "
            f"{keyspace.replication.strategy}",
            keyspace=keyspace.name,
            hint=f"`lockstep topology rf {keyspace.name}` or ALTER KEYSPACE changes that first",
        )
    if captures(cluster.schema, keyspace):
        raise Rejected(
            f"changes of tables of keyspace {keyspace.name} are captured, by streams of ranges of its ring",
            keyspace=keyspace.name,
            hint="ALTER TABLE ... WITH cdc = {'enabled': false} ends capturing",
        )
    ring = cluster.placements.ring(keyspace.group)
    total = keyspace.replication.total
    if any(len(placed.group.reads) != total for placed in ring.ranges):
        raise Rejected(
            f"ranges of keyspace {keyspace.name} have less than {total} replicas: there are too few nodes",
            keyspace=keyspace.name,
            hint="let more nodes join first (`lockstep cluster add`), or use a smaller factor",
        )
    return ring


def apart(cluster: ClusterMetadata, keyspace: Keyspace) -> int:
    """How many tablets of the keyspace do not lie where its ring would have them now."""
    assert keyspace.tablets is not None, "what lies on the ring is nowhere else"
    target = _ring_now(cluster, keyspace, 0)
    return sum(
        any(set(there.group.reads) != set(placed.group.reads) for there in target.overlapping(placed.range))
        for group in keyspace.groups
        for placed in cluster.placements.ring(group).ranges
    )


def _ring_now(cluster: ClusterMetadata, keyspace: Keyspace, epoch: int) -> RingPlacement:
    """The group of those on the ring that are replicated alike, or one as it would be."""
    placements = cluster.placements
    shared = shared_group(cluster, placements, keyspace.replication)
    if shared is not None:
        return shared
    return computed_ring(placements.next_id, keyspace.replication, cluster.directory.circle, epoch)


def _taken_back(cluster: ClusterMetadata, keyspace: Keyspace, epoch: int) -> ClusterMetadata:
    if keyspace.replication.racks:
        raise Rejected(
            f"keyspace {keyspace.name} is replicated by a list of racks, which the ring does not know",
            keyspace=keyspace.name,
            hint="ALTER KEYSPACE to the number of replicas first",
        )
    moved = apart(cluster, keyspace)
    if moved:
        raise Rejected(
            f"{moved} tablets of keyspace {keyspace.name} do not lie where its ring has them: "
            "nodes came or went meanwhile, or tablets were moved",
            keyspace=keyspace.name,
            hint=f"`lockstep tablets migrate {keyspace.name} finalize` goes on to tablets",
        )
    ring, groups = _ring_now(cluster, keyspace, epoch), tuple(sorted(keyspace.groups))
    back = msgspec.structs.replace(keyspace, group=ring.id, tablets=None, epoch=epoch)
    schema = cluster.schema.with_keyspace(back)
    for table in keyspace.tables:
        schema = schema.with_table(msgspec.structs.replace(table, group=0))
    degraded = dict.fromkeys(cluster.degraded)
    for group in groups:
        left = [line for line in cluster.degraded if line.group == group]
        degraded.update(dict.fromkeys(carried(left, keyspace.name, ring.id)))
    placements = cluster.placements.with_rings((ring,)).without(groups)
    assert ring.id in placements.by_id, "the keyspace has its ring"
    return cluster.changed(
        SCHEMA.set(schema),
        PLACEMENTS.set(placements),
        TABLETS.set(cluster.tablets.without(groups)),
        DEGRADED.set(of_groups(tuple(degraded), placements.by_id)),
    )


KINDS: Final[Mapping[int, type[Any]]] = {EntryKind.MIGRATE_KEYSPACE: MigrateKeyspace}
