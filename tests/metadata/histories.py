"""A history of metadata values made through the leader's tip, and checked by a second application."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from lockstep.metadata.access.role_changes import KINDS as ROLE_KINDS
from lockstep.metadata.access.role_changes import PERMISSION_KINDS as PERMISSION_KINDS
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.degraded import DEGRADED, of_groups
from lockstep.metadata.features import EXCLUDED_KINDS as EXCLUDED_KINDS
from lockstep.metadata.features import KINDS as FEATURE_KINDS
from lockstep.metadata.groups.membership import KINDS as MEMBERSHIP_KINDS
from lockstep.metadata.log import history
from lockstep.metadata.log.registry import Registry
from lockstep.metadata.log.snapshot_entries import KINDS as SNAPSHOT_KINDS
from lockstep.metadata.schema_change import KINDS as SCHEMA_KINDS
from lockstep.metadata.schema_change import placed, refuse_while_locked
from lockstep.metadata.schema_part import PLACEMENTS, SCHEMA
from lockstep.metadata.tablet_migration import KINDS as MIGRATION_KINDS
from lockstep.metadata.transformations import KINDS, Founder, Initialize
from lockstep.placement.placements import RingPlacement
from lockstep.schema.model import Keyspace, Replication, schema_of
from lockstep.topology.force_remove import KINDS as FORCE_KINDS
from lockstep.topology.generations import KINDS as STREAM_KINDS
from lockstep.topology.kinds.registry import UNIONS
from lockstep.topology.lone_steps import KINDS as LONE_KINDS
from lockstep.topology.repairs import KINDS as REPAIR_KINDS
from lockstep.topology.requests import KINDS as REQUEST_KINDS
from lockstep.topology.tablets.asked import KINDS as ASKED_KINDS
from lockstep.topology.tablets.moves import KINDS as MOVE_KINDS
from lockstep.topology.tablets.resizes import KINDS as RESIZE_KINDS
from lockstep.topology.transformations import KINDS as TOPOLOGY_KINDS
from lockstep.values.errors import Rejected


class SetKeyspaces(msgspec.Struct, frozen=True, array_like=True):
    """Replace the schema by keyspaces without tables: all that ownership depends on."""

    keyspaces: tuple[tuple[str, Replication], ...]

    def apply(self, cluster: ClusterMetadata, epoch: int) -> ClusterMetadata:
        known = {keyspace.name: keyspace.group for keyspace in cluster.schema.keyspaces}
        keyspaces = (Keyspace(*named, group=known.get(named[0], 0)) for named in sorted(self.keyspaces))
        schema, placements = placed(cluster, schema_of(keyspaces), epoch)
        if placements is not cluster.placements:
            refuse_while_locked(cluster, "keyspaces cannot change their replication")
        if any(operation.about.is_global for operation in cluster.operations):
            raise Rejected("keyspaces cannot change while one of them changes its replication")
        degraded = of_groups(cluster.degraded, placements.by_id)
        return cluster.changed(SCHEMA.set(schema), PLACEMENTS.set(placements), DEGRADED.set(degraded))


def simple(factor: int) -> Replication:
    return Replication("SimpleStrategy", (("", factor),))


def network(**factors: int) -> Replication:
    return Replication("NetworkTopologyStrategy", tuple(sorted(factors.items())))


def ring_with(cluster: ClusterMetadata, replication: Replication) -> RingPlacement:
    """The placement group with this replication."""
    (found,) = (ring for ring in cluster.placements.rings if ring.replication == replication)
    return found


def registry(*more: Mapping[int, type[Any]]) -> Registry:
    """All kinds, and `more`."""
    return Registry(
        KINDS,
        MEMBERSHIP_KINDS,
        TOPOLOGY_KINDS,
        LONE_KINDS,
        MOVE_KINDS,
        RESIZE_KINDS,
        ASKED_KINDS,
        STREAM_KINDS,
        MIGRATION_KINDS,
        REQUEST_KINDS,
        FORCE_KINDS,
        REPAIR_KINDS,
        SCHEMA_KINDS,
        EXCLUDED_KINDS,
        FEATURE_KINDS,
        ROLE_KINDS,
        PERMISSION_KINDS,
        SNAPSHOT_KINDS,
        {1000: SetKeyspaces},
        *more,
        unions=UNIONS,
    )


def founder(number: int, tokens: tuple[int, ...], dc: str = "dc1", rack: str = "r1") -> Founder:
    return Founder(f"host-{number}", f"10.0.0.{number}", 7000, 9042, 7080, dc, rack, tokens, "1")


class History(history.History):
    """Of all kinds, unless others are given."""

    def __init__(self, kinds: Registry | None = None) -> None:
        super().__init__(kinds if kinds is not None else registry(), "test")


def started(
    tokens: list[tuple[int, ...]], *keyspaces: tuple[str, Replication], kinds: Registry | None = None
) -> History:
    """Founders in one data centre with these tokens, and the given keyspaces."""
    history = History(kinds)
    founders = tuple(founder(at + 1, owned) for at, owned in enumerate(tokens))
    history.submit(Initialize("cluster-1", "test", founders))
    if keyspaces:
        history.submit(SetKeyspaces(keyspaces))
    return history
