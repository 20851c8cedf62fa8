"""Repairs of the groups over HTTP, under the paths that recovery tools know.

Invariant: a repair is planned by the node that is asked and carried out only as planned; a plan that is given
along is refused when another one is made now.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from lockstep.documents.recovery import Absent, ClusterReset, ClusterState, Incarnation, Participant
from lockstep.metadata.directory import LINEAGE, Repaired
from lockstep.metadata.lineage import links_of
from lockstep.node.recovery.desk import Surveyed
from lockstep.node.services import NodeServices
from lockstep.recovery.plan import ResetPlan, Wish
from lockstep.server.admin.operations import Operation, get, later, now, read_body
from lockstep.server.reports.leader_views import named
from lockstep.values.errors import PreconditionError

RESET_PATH: Final = "/management/v1/recovery/cluster/reset"
STATE_PATH: Final = "/management/v1/cluster/state"
_BODY: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "cmgNodeNames": {"type": "array", "items": {"type": "string"}},
        "metastorageReplicationFactor": {"type": "integer"},
        "dryRun": {"type": "boolean"},
        "digest": {"type": "string", "description": "Of the dry run that is to be carried out"},
    },
}


class _Wanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    cmg_node_names: tuple[str, ...] = ()
    metastorage_replication_factor: int = 0
    dry_run: bool = False
    digest: str = ""


class RecoveryRequests:
    def __init__(self, node: NodeServices) -> None:
        self._node = node
        self._desk = node.membership.recovery

    async def reset(self, body: Any) -> ClusterReset:
        """Plan a repair, and carry it out unless that is not wanted. PreconditionError where there is nothing
        to repair, and when another plan is made now than the one that was looked at."""
        wanted = read_body(body or {}, _Wanted, "the body is no such wish")
        management = named(self._node, ",".join(wanted.cmg_node_names)) if wanted.cmg_node_names else []
        actor = f"node {self._node.context.own_id()}"
        wish = Wish(tuple(info.id for info in management), wanted.metastorage_replication_factor, actor)
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
                    surveyed.silent.get(node, "it did not answer"),
                )
                for node in plan.absent
            ),
            lost=plan.lost,
        )

    def state(self) -> ClusterState:
        node, standing = self._node, self._desk.file.standing
        cluster, management = node.log.cluster, node.membership.management
        repairs: tuple[Repaired, ...] = cluster.parts[LINEAGE]
        links = links_of(cluster.identity, repairs)
        told = (None, *repairs)
        group = management.group
        return ClusterState(
            node=node.context.own_id(),
            cluster_name=cluster.identity.cluster_name,
            cluster_id=cluster.identity.cluster_id,
            epoch=cluster.epoch,
            leader=node.log.leader_id or 0,
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
                    link.hash.hex(),
                )
                for link, one in zip(links, told, strict=True)
            ),
            phase=standing.phase.value,
            attempt=standing.attempt,
        )

    def operations(self) -> list[Operation]:
        """For the admin API."""
        return [
            get(STATE_PATH, "Which incarnation of the cluster this node is of", now(lambda *_: self.state())),
            Operation(
                "POST",
                RESET_PATH,
                "Make both groups anew from the nodes that are left, after their majority was lost",
                later(lambda request, _: self.reset(request.body)),
                "The plan, and who confirmed it",
                body=_BODY,
            ),
        ]
