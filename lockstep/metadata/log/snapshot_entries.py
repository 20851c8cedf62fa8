"""The entries that bound the log: taking a snapshot, and letting nodes drop what a snapshot holds.

Invariant: a snapshot entry names the state digest of the value before it, completed by the leader and
checked by every node that applies it, so nodes whose values differ find out there and never serve both.
"""

from __future__ import annotations

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.groups.service import SERVICE
from lockstep.metadata.log.apply import state_digest
from lockstep.metadata.log.registry import EntryKind
from lockstep.metadata.transformations import refuse_before_initialize
from lockstep.values.errors import Rejected

#: `TakeSnapshot.after` of a snapshot that somebody asked for, whenever the last one was.
ANY_TIME = -1


class TakeSnapshot(msgspec.Struct, frozen=True, array_like=True):
    """Every node stores the value before this entry, with the entry itself.

    `after` is the snapshot epoch that the proposer's interval began at: of two proposals for one interval
    the second is refused. `base_epoch` and `digest` are set by the leader.
    """

    reason: str
    after: int = ANY_TIME
    base_epoch: int = 0
    digest: bytes = b""

    def prepared(self, cluster: ClusterMetadata) -> TakeSnapshot:
        self._refuse(cluster)
        return msgspec.structs.replace(self, base_epoch=cluster.epoch, digest=state_digest(cluster))

    def apply(self, cluster: ClusterMetadata, epoch: int) -> ClusterMetadata:
        self._refuse(cluster)
        if self.base_epoch != cluster.epoch:
            raise Rejected(f"this snapshot is of epoch {self.base_epoch}, not of epoch {cluster.epoch}")
        own = state_digest(cluster)
        if own != self.digest:
            raise Rejected(
                f"the state at epoch {cluster.epoch} has the digest {own.hex()} here and {self.digest.hex()} "
                "where the snapshot was asked for",
                hint="this node's metadata differs: `lockstep metadata verify`",
            )
        assert epoch > cluster.service.snapshot_epoch, "a later snapshot is of a later epoch"
        service = msgspec.structs.replace(
            cluster.service, snapshot_epoch=epoch, snapshot_voters=cluster.service.voters
        )
        return cluster.changed(SERVICE.set(service))

    def _refuse(self, cluster: ClusterMetadata) -> None:
        refuse_before_initialize(cluster)
        latest = cluster.service.snapshot_epoch
        if latest == cluster.epoch:
            raise Rejected(f"nothing changed since the snapshot of epoch {latest}")
        if self.after not in (ANY_TIME, latest):
            raise Rejected(f"the snapshot of epoch {latest} was taken meanwhile")


class TruncateLog(msgspec.Struct, frozen=True, array_like=True):
    """Nodes may drop the log's entries up to and with `epoch`, once each has a snapshot that holds them."""

    epoch: int

    def apply(self, cluster: ClusterMetadata, epoch: int) -> ClusterMetadata:
        refuse_before_initialize(cluster)
        service = cluster.service
        if self.epoch > service.snapshot_epoch:
            latest = (
                f"which is of epoch {service.snapshot_epoch}"
                if service.snapshot_epoch
                else "of which is none"
            )
            raise Rejected(
                f"the log cannot be truncated to epoch {self.epoch}, beyond the latest snapshot, {latest}",
                hint="take one first: lockstep cms snapshot",
            )
        if self.epoch <= service.truncated_epoch:
            raise Rejected(f"the log is truncated to epoch {service.truncated_epoch} already")
        assert service.snapshot_epoch < epoch, "a log is cut behind a snapshot that is in it"
        service = msgspec.structs.replace(service, truncated_epoch=self.epoch)
        return cluster.changed(SERVICE.set(service))


KINDS: dict[int, type] = {EntryKind.SNAPSHOT: TakeSnapshot, EntryKind.TRUNCATE_LOG: TruncateLog}
