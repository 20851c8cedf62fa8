"""Which parts a backup needs so that nothing acknowledged is missing, and which a restore takes from where.

Invariant: functions of what they are told. A backup without some nodes is refused where these could form a
quorum of their own; parts of two backups of one name are never mixed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.repairs import RepairPart
from lockstep.placement.quorums import dc_factors, majority
from lockstep.replica.backup_messages import KeptPart
from lockstep.storage.backup_manifest import BackedTable, Manifest, tables_of, unsealed
from lockstep.values.errors import PreconditionError
from lockstep.values.ids import NodeId


class Found(msgspec.Struct, frozen=True):
    """A backup whose parts are all there. `host_ids`: which of them each node is to serve."""

    name: str
    manifests: tuple[Manifest, ...]
    host_ids: Mapping[NodeId, tuple[str, ...]]

    @property
    def first(self) -> Manifest:
        return self.manifests[0]

    def tables(self) -> tuple[BackedTable, ...]:
        """Each table once, its files summed up over all parts."""
        return tables_of(self.manifests)


def refuse_lossy(cluster: ClusterMetadata, parts: Sequence[RepairPart], absent: Sequence[NodeId]) -> None:
    """PreconditionError when `absent` nodes alone may have acknowledged a write at a quorum, be it of all
    replicas or of those in one data centre."""
    dc_of = cluster.directory.dc_by_id
    for part in parts if absent else ():
        ring = cluster.placements.ring(part.group)
        factors = dc_factors(ring.replication)
        for placed in ring.ranges:
            missing = [node for node in placed.group.reads if node in absent]
            lossy = len(missing) >= majority(len(placed.group.reads)) or any(
                sum(dc_of[node] == dc for node in missing) >= majority(factor) for dc, factor in factors
            )
            if lossy:
                raise PreconditionError(
                    f"too few replicas of ({placed.range.left}, {placed.range.right}] of keyspace "
                    f"{part.keyspace} can be reached: acknowledged writes would be missing",
                    hint="start nodes until a quorum of every range is there",
                )


def chosen_parts(name: str, kept: Mapping[NodeId, Sequence[KeptPart]], silent: Sequence[NodeId]) -> Found:
    """Each part from the first node that keeps it whole. PreconditionError names what is missing."""
    found: dict[str, Manifest] = {}
    serves: dict[NodeId, list[str]] = {}
    problems: dict[str, str] = {}
    for node in sorted(kept):
        for part in kept[node]:
            if part.problem:
                problems.setdefault(part.host_id, f"{part.host_id} on node {node}: {part.problem}")
            elif part.host_id not in found:
                found[part.host_id] = unsealed(f"the manifest of {part.host_id}", part.manifest)
                serves.setdefault(node, []).append(part.host_id)
    asked = f"; {', '.join(f'node {node}' for node in silent)} cannot be asked" if silent else ""
    if not found:
        why = "; ".join(problems.values())
        raise PreconditionError(
            f"no node keeps a complete part of a backup {name}{asked}" + (f": {why}" if why else ""),
            hint=f"copy the parts into backups/{name}/ of any node's data directory",
        )
    manifests = tuple(found[host_id] for host_id in sorted(found))
    if len({manifest.backup_id for manifest in manifests}) > 1:
        raise PreconditionError(f"parts of different backups are called {name}", hint="keep those of one")
    missing = [host_id for host_id in manifests[0].nodes if host_id not in found]
    if missing:
        names = ", ".join(problems.get(host_id, host_id) for host_id in missing)
        raise PreconditionError(
            f"{len(missing)} of {len(manifests[0].nodes)} parts of backup {name} are missing: {names}{asked}",
            hint=f"copy them into backups/{name}/ of any node's data directory",
        )
    return Found(name, manifests, {node: tuple(ids) for node, ids in serves.items()})
