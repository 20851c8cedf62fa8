"""The way from the ring to a log over HTTP, under the path that tools know.

Invariant: nothing is decided here. To ask for an upgrade again changes nothing; it is finished once every
node says `done`."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from lockstep.documents.ring import UpgradeAborted, UpgradeReport
from lockstep.node.services import NodeServices
from lockstep.server.admin.operations import Operation, get, later, now, read_body
from lockstep.server.admin.recovery import actor_of
from lockstep.server.reports.leader_views import named

UPGRADE_PATH: Final = "/storage_service/raft_topology/upgrade"
ABORT_PATH: Final = "/v1/upgrade/abort"
_BODY: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "ignore": {
            "type": "array",
            "items": {"type": "string"},
            "description": "Dead nodes that need not agree: by id, host id or address",
        }
    },
}


class _Wanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    ignore: tuple[str, ...] = ()


class UpgradeRequests:
    def __init__(self, node: NodeServices) -> None:
        self._node = node
        self._desk = node.membership.upgrade

    def report(self) -> UpgradeReport:
        node, ring = self._node, self._desk.ring
        running = ring.upgrading
        return UpgradeReport(
            node=node.context.own_id(),
            state=ring.upgrade_state.value,
            epoch=node.log.cluster.epoch,
            joined=not (node.context.is_on_ring or node.context.awaits_log),
            initiator=running.initiator if running is not None else 0,
            ignored=running.ignored if running is not None else (),
            begun_epoch=running.begun_epoch if running is not None else 0,
            built_epoch=ring.built_epoch,
            can_abort=running is not None,
            waits=self._desk.waits,
            gave_up=ring.gave_up,
        )

    async def begin(self, body: Any, actor: str) -> UpgradeReport:
        wanted = read_body(body or {}, _Wanted, "the body is no such wish")
        ignored = named(self._node, ",".join(wanted.ignore)) if wanted.ignore else []
        await self._desk.begin(tuple(info.id for info in ignored), actor)
        return self.report()

    async def abort(self, actor: str) -> UpgradeAborted:
        return UpgradeAborted(text=await self._desk.abort(actor))

    def operations(self) -> list[Operation]:
        """For the admin API."""
        return [
            get(
                UPGRADE_PATH,
                "How far the cluster is on its way from the ring to a log, as this node has it",
                now(lambda *_: self.report()),
            ),
            Operation(
                "POST",
                UPGRADE_PATH,
                "Have a cluster that runs on the ring get a log",
                later(lambda request, _: self.begin(request.body, actor_of(request))),
                "Where it is",
                body=_BODY,
            ),
            Operation(
                "POST",
                ABORT_PATH,
                "Give up an upgrade whose log is not built yet",
                later(lambda request, _: self.abort(actor_of(request))),
                "What was done",
            ),
        ]
