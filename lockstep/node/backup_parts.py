"""The parts of backups and restores, made and wired to each other and to the node's.

Invariant: what is kept for a session goes when that closes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.node.backup_desk import BackupDesk
from lockstep.node.backup_restoring import BackupRestoring
from lockstep.node.backup_taking import BackupTaking
from lockstep.node.backups import BackupDriver

if TYPE_CHECKING:
    from lockstep.node.parts import Parts


def backups_of(node: Parts, generation: int) -> BackupDriver:
    def cluster() -> ClusterMetadata:
        return node.state.current

    def own_id() -> int:
        return node.node_id

    def host_id() -> str:
        return node.identity.value.host_id

    runtime, guards, streams, client = node.runtime, node.guards, node.streams, node.stream_client
    taking = BackupTaking(runtime, node.engine, guards, cluster, own_id, host_id, streams.throttle)
    taking.require_held = node.lacking.require
    restoring = BackupRestoring(runtime, taking, client, guards, cluster)
    desk = BackupDesk(runtime, node.internode, taking, restoring, guards, node.catch_up.reach)
    streams.source_of = restoring.source_of

    def applied(before: ClusterMetadata, after: ClusterMetadata, _entry: object) -> None:
        if before.repairs is not after.repairs:
            for part in (taking, restoring, desk, client):
                part.forget_closed(after.session_open)
            streams.forget_closed()

    node.state.listen(applied, parts_only=True)
    return BackupDriver(
        runtime,
        node.state,
        node.submitter,
        node.internode,
        desk,
        own_id,
        generation,
        node.liveness.alive,
        node.log,
    )
