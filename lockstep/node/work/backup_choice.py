"""Which parts a backup needs so that nothing acknowledged is missing and which a restore needs, and what a
restore has the nodes do: check and offer the parts they keep, and bring ranges to them.

Invariant: functions of what they are told. A backup without some nodes is refused where these could form a
quorum of their own; parts of two backups of one name are never mixed. Functions of what they are told. Tables
are named, as emptying one gives it another id.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from lockstep.internode.handshake import Address
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.repairs import Repair, RepairPart, joined_ranges
from lockstep.placement.quorums import dc_factors, majority
from lockstep.replica.backup_messages import BackupAction, BackupOrder, KeptPart, OfferedTable
from lockstep.storage.backup_manifest import BackedTable, Manifest, tables_of, unsealed
from lockstep.values.errors import LockstepError, PreconditionError
from lockstep.values.ids import NodeId
from lockstep.values.tokens import Range


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


Order = tuple[NodeId, BackupOrder]


class Restored(msgspec.Struct, frozen=True):
    """What of a backup goes where: `tables` has the name here of each id in the backup. `empty`: those that
    are emptied once all parts were found whole. `made`: how many were missing, and were made for it."""

    found: Found
    tables: Mapping[int, tuple[str, str]]
    empty: Sequence[tuple[str, str]] = ()
    made: int = 0

    def ids(self, cluster: ClusterMetadata) -> dict[int, int]:
        """The present id of each table, by its id in the backup. PreconditionError when one was dropped."""
        ids: dict[int, int] = {}
        for backed, (keyspace, name) in sorted(self.tables.items()):
            table = cluster.schema.table(keyspace, name)
            if table is None:
                raise PreconditionError(f"table {keyspace}.{name} was dropped meanwhile")
            ids[backed] = table.id
        return ids

    def by_keyspace(self, cluster: ClusterMetadata) -> dict[str, list[int]]:
        """The present ids, sorted."""
        found: dict[str, list[int]] = {}
        for backed, table_id in self.ids(cluster).items():
            found.setdefault(self.tables[backed][0], []).append(table_id)
        return {keyspace: sorted(found[keyspace]) for keyspace in sorted(found)}

    def untouched(self, error: LockstepError) -> PreconditionError:
        """What is told when the check of the parts failed."""
        what = "nothing was changed"
        if self.made:
            what += f", but that {self.made} missing tables were made, which are empty"
        return PreconditionError(f"{error.message}; {what}", hint=error.hint)

    def emptied(self, error: LockstepError) -> PreconditionError:
        """What is told when it failed later."""
        names = ", ".join(f"{keyspace}.{name}" for keyspace, name in self.empty)
        return PreconditionError(f"{error.message}; restore again, what was to be emptied is empty: {names}")


def offers(cluster: ClusterMetadata, repair: Repair, wanted: Restored) -> Iterator[Order]:
    """What has every part checked, and offered to all."""
    offered = tuple(OfferedTable(backed, here) for backed, here in sorted(wanted.ids(cluster).items()))
    for node, host_ids in wanted.found.host_ids.items():
        yield (
            node,
            BackupOrder(
                repair.session_id,
                cluster.epoch,
                BackupAction.OFFER,
                wanted.found.name,
                host_ids=host_ids,
                offered=offered,
            ),
        )


def loads(cluster: ClusterMetadata, repair: Repair, wanted: Restored) -> Iterator[Order]:
    """What every replica has to bring to itself."""
    by_id, by_keyspace = cluster.directory.by_id, wanted.by_keyspace(cluster)
    sources: tuple[Address, ...] = tuple(
        (by_id[node].address, by_id[node].internode_port) for node in wanted.found.host_ids
    )
    for part in repair.parts:
        owned: dict[NodeId, list[Range]] = {}
        for placed in cluster.placements.ring(part.group).ranges:
            for node in placed.group.writes:
                owned.setdefault(node, []).append(placed.range)
        here = {table.id for table in cluster.schema.tables_in(part.group)}
        for table in sorted(here.intersection(by_keyspace[part.keyspace])):
            for node, ranges in sorted(owned.items()):
                yield (
                    node,
                    BackupOrder(
                        repair.session_id,
                        cluster.epoch,
                        BackupAction.LOAD,
                        wanted.found.name,
                        table=table,
                        ranges=joined_ranges(ranges),
                        sources=sources,
                    ),
                )
