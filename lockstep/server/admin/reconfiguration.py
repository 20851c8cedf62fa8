"""Other members of either group while its majority lives: a change of peers by the groups' own rules.

Invariant: an entry of the metadata log says what is wanted, and nothing else is done here; the groups follow
it one member at a time, and each keeps a majority on the way.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from lockstep.documents.recovery import GroupReconfiguration
from lockstep.metadata.groups.membership_step import Observed, plan
from lockstep.metadata.groups.placing import PlaceManagement, named_managers
from lockstep.node.services import NodeServices
from lockstep.server.admin.operations import Operation, later, read_body
from lockstep.server.reports.leader_views import GROUPS, named, refuse_on_ring
from lockstep.values.errors import ConfigurationError, Rejected
from lockstep.values.ids import NodeId

PATH: Final = "/management/v1/recovery/{group}/reconfigure"
_BODY: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "nodes": {"type": "array", "items": {"type": "string"}},
        "dryRun": {"type": "boolean"},
    },
}


class _Wanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    nodes: tuple[str, ...] = ()
    dry_run: bool = False


class Reconfiguration:
    def __init__(self, node: NodeServices) -> None:
        self._node = node

    async def change(self, group: str, body: Any) -> GroupReconfiguration:
        """Have the group live on these nodes. ConfigurationError for another group, or a node that is none;
        Rejected where they cannot be its members."""
        refuse_on_ring(self._node)
        if group not in GROUPS:
            raise ConfigurationError(f"there is no group {group}", hint=f"there are {', '.join(GROUPS)}")
        wanted = read_body(body or {}, _Wanted, "the body is no such wish")
        ids = tuple(sorted(info.id for info in named(self._node, ",".join(wanted.nodes))))
        return await (self._place(ids, dry_run=wanted.dry_run) if group == "cmg" else
                      self._voters(ids, dry_run=wanted.dry_run))  # fmt: skip

    async def _place(self, ids: tuple[NodeId, ...], *, dry_run: bool) -> GroupReconfiguration:
        node, cluster = self._node, self._node.log.cluster
        before = named_managers(cluster) or tuple(cluster.voters)
        self._refuse_dead(ids)
        change = PlaceManagement(ids)
        change.apply(cluster, cluster.epoch + 1)
        if not dry_run:
            await node.log.submit(change)
        after = ids or tuple(cluster.voters)
        return GroupReconfiguration("cmg", node.log.cluster.epoch, before, after, not ids, dry_run)

    async def _voters(self, ids: tuple[NodeId, ...], *, dry_run: bool) -> GroupReconfiguration:
        node, cluster = self._node, self._node.log.cluster
        if not ids:
            raise ConfigurationError(
                "name the new voters", hint="`lockstep cms reconfigure auto` chooses them"
            )
        self._refuse_dead(ids)
        change = plan(cluster, ids, Observed(), "asked for by an operator", len(ids))
        change.apply(cluster, cluster.epoch + 1)
        if not dry_run:
            await node.log.submit(change)
        return GroupReconfiguration(
            "metastorage", node.log.cluster.epoch, tuple(cluster.voters), ids, False, dry_run
        )

    def _refuse_dead(self, ids: tuple[NodeId, ...]) -> None:
        """Nobody waits for what is dead, so it is not asked to be a member."""
        dead = [one for one in ids if not self._node.membership.liveness.alive(one)]
        if dead:
            raise Rejected(f"node {dead[0]} is down: it cannot be a member", hint="name nodes that are up")

    def operations(self) -> list[Operation]:
        """For the admin API."""
        return [
            Operation(
                "POST",
                PATH,
                "Give a group other members while its majority lives, one by one",
                later(lambda request, values: self.change(values["group"], request.body)),
                "Its members before and after",
                body=_BODY,
            )
        ]
