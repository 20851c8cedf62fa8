"""What a restore has the nodes do: check and offer the parts they keep, and bring ranges to every replica.

Invariant: functions of what they are told. Tables are named, as emptying one gives it another id.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from lockstep.internode.handshake import Address
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.repairs import Repair, joined_ranges
from lockstep.node.work.backup_choice import Found
from lockstep.replica.backup_messages import BackupAction, BackupOrder, OfferedTable
from lockstep.values.errors import LockstepError, PreconditionError
from lockstep.values.ids import NodeId
from lockstep.values.tokens import Range

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
        for table in by_keyspace[part.keyspace]:
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
