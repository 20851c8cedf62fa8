"""Repairs of the groups over HTTP, under the paths that recovery tools know.

Invariant: a repair is planned by the node that is asked and carried out only as planned; a plan that is given
along is refused when another one is made now.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from lockstep.documents.recovery import (
    Absent,
    AuditRecord,
    ClusterMigration,
    ClusterReset,
    ClusterState,
    GroupRestart,
    Incarnation,
    KnownHash,
    MigratedNode,
    Participant,
    Place,
    RecoveryAudit,
    Restarted,
)
from lockstep.metadata.directory import LINEAGE, Reset
from lockstep.metadata.lineage import links_of
from lockstep.node.recovery.judging import as_target
from lockstep.node.recovery.reset_service import Surveyed
from lockstep.node.services import NodeServices
from lockstep.recovery.fences import Target
from lockstep.recovery.plan import ResetPlan, Wish
from lockstep.server.admin.export import export_operations
from lockstep.server.admin.http import HttpRequest
from lockstep.server.admin.operations import Operation, get, later, now, read_body
from lockstep.server.log import ANONYMOUS
from lockstep.server.reports.leader_views import GROUPS, named, refuse_on_ring
from lockstep.values.errors import ConfigurationError, PreconditionError
from lockstep.values.node_limits import RECOVERY_AUDIT_TOLD_MAX, RECOVERY_HASHES_TOLD

RESET_PATH: Final = "/management/v1/recovery/cluster/reset"
MIGRATE_PATH: Final = "/management/v1/recovery/cluster/migrate"
RESTART_PATH: Final = "/management/v1/recovery/{group}/restart"
AUDIT_PATH: Final = "/management/v1/recovery/audit"
STATE_PATH: Final = "/management/v1/cluster/state"
_BODY: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "cmgNodeNames": {"type": "array", "items": {"type": "string"}},
        "metastorageReplicationFactor": {"type": "integer"},
        "exclude": {"type": "array", "items": {"type": "string"}},
        "keepCmg": {"type": "boolean", "description": "The members that the leader of cmg names"},
        "toRing": {"type": "boolean", "description": "What is left goes on on the ring, without groups"},
        "dryRun": {"type": "boolean"},
        "digest": {"type": "string", "description": "Of the dry run that is to be carried out"},
    },
}


_MIGRATE_BODY: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["state"],
    "properties": {
        "state": {"type": "object", "description": "What the repaired cluster says of itself"},
        "dryRun": {"type": "boolean"},
        "parkDiverged": {"type": "boolean", "description": "Nodes that have diverged are only read from"},
    },
}


_RESTART_BODY: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"nodes": {"type": "array", "items": {"type": "string"}}},
}


class _Restart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    nodes: tuple[str, ...] = ()


class _Migration(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    state: ClusterState
    dry_run: bool = False
    park_diverged: bool = False


class _Wanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    cmg_node_names: tuple[str, ...] = ()
    metastorage_replication_factor: int = 0
    exclude: tuple[str, ...] = ()
    keep_cmg: bool = False
    to_ring: bool = False
    dry_run: bool = False
    digest: str = ""


class RecoveryRequests:
    def __init__(self, node: NodeServices) -> None:
        self._node = node
        self._desk = node.membership.recovery

    async def reset(self, body: Any, actor: str = "") -> ClusterReset:
        """Plan a repair, and carry it out unless that is not wanted. PreconditionError where there is nothing
        to repair, and when another plan is made now than the one that was looked at."""
        refuse_on_ring(self._node)
        wanted = read_body(body or {}, _Wanted, "the body is no such wish")
        management = named(self._node, ",".join(wanted.cmg_node_names)) if wanted.cmg_node_names else []
        excluded = named(self._node, ",".join(wanted.exclude)) if wanted.exclude else []
        if management and wanted.keep_cmg:
            raise ConfigurationError("the members of cmg are named, or those that it has; not both")
        wish = Wish(
            tuple(info.id for info in management),
            wanted.metastorage_replication_factor,
            actor,
            tuple(info.id for info in excluded),
            wanted.keep_cmg,
            wanted.to_ring,
        )
        plan = await self._desk.plan(wish)
        surveyed = await self._desk.survey()
        shown = self._shown(plan, surveyed, dry_run=wanted.dry_run)
        if wanted.dry_run:
            return shown
        if wanted.digest and wanted.digest != plan.digest:
            raise PreconditionError(
                "the cluster is not as it was when this repair was planned", hint="look at a new dry run"
            )
        decided = await self._desk.reset(plan)
        return msgspec.structs.replace(shown, told=decided.told)

    def _shown(self, plan: ResetPlan, surveyed: Surveyed, *, dry_run: bool) -> ClusterReset:
        directory, voters = self._node.log.cluster.directory, self._node.log.cluster.voters
        return ClusterReset(
            cluster_name=plan.cluster_name,
            former_id=plan.former_id,
            cluster_id=plan.cluster_id,
            digest=plan.digest,
            dry_run=dry_run,
            attempt=plan.attempt,
            epoch=plan.last.epoch,
            entries=len(plan.entries) - 1,
            source=plan.source,
            voters=plan.voters,
            management=plan.management,
            participants=tuple(
                Participant(
                    one.node,
                    one.epoch,
                    one.log_epoch,
                    one.log_term,
                    one.node == plan.source,
                    one.node in plan.voters,
                    one.node in plan.management,
                )
                for one in surveyed.answers
                if one.node in plan.participants
            ),
            absent=tuple(
                Absent(
                    node,
                    directory.by_id[node].address,
                    node in voters,
                    surveyed.silent.get(node, "it is left out by name"),
                )
                for node in plan.absent
            ),
            lost=plan.lost,
            by_log=plan.by_log,
            ring_mode=plan.ring_mode,
        )

    def state(self) -> ClusterState:
        node, standing = self._node, self._desk.file.standing
        cluster, management = node.log.cluster, node.membership.management
        repairs: tuple[Reset, ...] = cluster.parts[LINEAGE]
        links = links_of(cluster.identity, repairs)
        target = as_target(self._node.log, RECOVERY_HASHES_TOLD)
        told = (None, *repairs)
        group = management.group
        is_bound = node.context.identity.value.cluster_id == cluster.identity.cluster_id
        return ClusterState(
            node=node.context.own_id(),
            cluster_name=cluster.identity.cluster_name,
            cluster_id=cluster.identity.cluster_id,
            epoch=cluster.epoch,
            # Whoever leads while this node is about to go on under another id does not lead there.
            leader=(node.log.leader_id or 0) if is_bound else 0,
            voters=tuple(cluster.voters),
            management=group.driver.raft.configuration.voters if group is not None else (),
            lineage=tuple(
                Incarnation(
                    link.cluster_id,
                    link.repair.kind,
                    link.repair.actor,
                    one.epoch if one is not None else 0,
                    one.at_us if one is not None else 0,
                    one.lost if one is not None else "",
                    one.hash.hex() if one is not None else "",
                    link.hash.hex(),
                )
                for link, one in zip(links, told, strict=True)
            ),
            phase=standing.phase.value,
            attempt=standing.attempt,
            hashes=tuple(KnownHash(epoch, known.hex()) for epoch, known in target.hashes),
            addresses=tuple(Place(*address) for address in target.addresses),
        )

    async def migrate(self, body: Any, actor: str = "") -> ClusterMigration:
        """Bring every node of this cluster that answers to the repaired one, each unless it has diverged."""
        refuse_on_ring(self._node)
        wanted = read_body(body or {}, _Migration, "the body is no state of a cluster")
        told, silent = await self._desk.migrate(
            _target(wanted.state), actor, dry_run=wanted.dry_run, parks=wanted.park_diverged
        )
        nodes = [
            MigratedNode(
                one.node,
                one.epoch,
                one.refused,
                one.diverged_at,
                own_hash=one.own_hash.hex(),
                other_hash=one.other_hash.hex(),
                waived=one.waived,
                zombie=one.zombie,
            )
            for one in told
        ]
        nodes += [MigratedNode(node, refused=why, answered=False) for node, why in silent.items()]
        return ClusterMigration(
            wanted.state.cluster_id, wanted.dry_run, tuple(sorted(nodes, key=lambda one: one.node))
        )

    async def restart(self, group: str, body: Any, actor: str = "") -> GroupRestart:
        """Have the nodes of a group begin another life, one after the other; all that have a part in it when
        none is named. ConfigurationError for another group, or a node that is none."""
        refuse_on_ring(self._node)
        if group not in GROUPS:
            raise ConfigurationError(f"there is no group {group}", hint=f"there are {', '.join(GROUPS)}")
        wanted = read_body(body or {}, _Restart, "the body is no such wish")
        node = self._node
        if wanted.nodes:
            ids = [int(info.id) for info in named(node, ",".join(wanted.nodes))]
        else:
            voters, outgoing = node.membership.groups.configuration(GROUPS[group])
            ids = sorted({*voters, *outgoing})
        done = await self._desk.restart(ids, actor)
        return GroupRestart(group, tuple(Restarted(one, failed) for one, failed in done.items()))

    def audit(self) -> RecoveryAudit:
        records = self._desk.audit.records
        return RecoveryAudit(
            self._node.context.own_id(),
            len(records),
            tuple(
                AuditRecord(
                    one.number,
                    one.at_us,
                    one.step,
                    one.actor,
                    one.attempt,
                    one.cluster_id,
                    one.text,
                    one.hash.hex(),
                )
                for one in records[-RECOVERY_AUDIT_TOLD_MAX:]
            ),
        )

    def operations(self) -> list[Operation]:
        """For the admin API."""
        return [
            get(STATE_PATH, "Which incarnation of the cluster this node is of", now(lambda *_: self.state())),
            Operation(
                "POST",
                RESET_PATH,
                "Make both groups anew from the nodes that are left, after their majority was lost",
                later(lambda request, _: self.reset(request.body, actor_of(request))),
                "The plan, and who confirmed it",
                body=_BODY,
            ),
            Operation(
                "POST",
                MIGRATE_PATH,
                "Bring the nodes of this cluster to the one that was made anew from it",
                later(lambda request, _: self.migrate(request.body, actor_of(request))),
                "Which nodes go, and why others do not",
                body=_MIGRATE_BODY,
            ),
            Operation(
                "POST",
                RESTART_PATH,
                "Start members of a group again, each with its node, within their processes",
                later(lambda request, values: self.restart(values["group"], request.body, actor_of(request))),
                "Which nodes are back, and why one is not",
                body=_RESTART_BODY,
            ),
            get(
                AUDIT_PATH,
                "What this node recorded of repairs of the groups",
                now(lambda *_: self.audit()),
            ),
            *export_operations(self._node),
        ]


def actor_of(request: HttpRequest) -> str:
    """Whom records of a repair name."""
    return f"{request.principal or ANONYMOUS} from {request.peer}"


def _target(state: ClusterState) -> Target:
    """ConfigurationError when the document names no lineage."""
    try:
        return Target(
            state.cluster_name,
            tuple(one.cluster_id for one in state.lineage),
            tuple(
                Reset(
                    one.cluster_id,
                    one.kind,
                    one.actor,
                    one.epoch,
                    bytes.fromhex(one.fork_hash),
                    one.at_us,
                    one.lost,
                )
                for one in state.lineage[1:]
            ),
            tuple((one.epoch, bytes.fromhex(one.hash)) for one in state.hashes),
            tuple((one.address, one.port) for one in state.addresses),
            state.voters,
        )
    except ValueError as error:
        raise ConfigurationError(f"the state of the repaired cluster cannot be read: {error}") from error
