"""The way of a keyspace from the ring to tablets over HTTP: how far it is, and its steps.

Invariant: a step becomes an entry of the log and nothing else.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from lockstep.documents.tablets import TabletMigration
from lockstep.metadata.tablet_migration import MigrateKeyspace, Step, apart
from lockstep.node.services import NodeServices
from lockstep.server.admin.operations import Operation, Parameter, get, later, read_body
from lockstep.values.errors import ConfigurationError

MIGRATE_PATH: Final = "/v1/tablets/migrate"
_BODY: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["keyspace", "step"],
    "properties": {
        "keyspace": {"type": "string"},
        "step": {"type": "string", "enum": [step.value for step in Step]},
    },
}


class _Wanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    keyspace: str
    step: Step


class MigrationRequests:
    def __init__(self, node: NodeServices) -> None:
        self._node = node

    async def migrate(self, body: Any) -> TabletMigration:
        """Take a step. ConfigurationError for a wrong wish, Rejected where it cannot be taken now."""
        wanted = read_body(body or {}, _Wanted, "the body is no such wish")
        await self._node.log.submit(MigrateKeyspace(wanted.keyspace, wanted.step))
        return self.shown(wanted.keyspace)

    def shown(self, name: str) -> TabletMigration:
        """Where a keyspace is on its way; ConfigurationError when there is none of that name."""
        cluster = self._node.log.cluster
        keyspace = cluster.schema.by_name.get(name)
        if keyspace is None:
            raise ConfigurationError(f"there is no keyspace {name}")
        if keyspace.tablets is None:
            return TabletMigration(epoch=cluster.epoch, keyspace=name, tables=len(keyspace.by_name))
        on_its_way = keyspace.tablets.from_ring
        return TabletMigration(
            epoch=cluster.epoch,
            keyspace=name,
            state="on its way" if on_its_way else "tablets",
            tables=len(keyspace.by_name),
            tablets=sum(cluster.placements.ring(group).count for group in keyspace.groups),
            apart=apart(cluster, keyspace) if on_its_way else 0,
        )

    def operations(self) -> list[Operation]:
        """For the admin API."""

        async def shown(request: Any, _: dict[str, str]) -> TabletMigration:
            return self.shown(request.query.get("keyspace", ""))

        return [
            get(
                MIGRATE_PATH,
                "How far a keyspace is on its way from the ring to tablets",
                later(shown),
                Parameter("keyspace", "Name of a keyspace", required=True),
            ),
            Operation(
                "POST",
                MIGRATE_PATH,
                "Take a keyspace from the ring to tablets, end that for good, or take it back",
                later(lambda request, _: self.migrate(request.body)),
                "Where the keyspace is on its way",
                body=_BODY,
            ),
        ]
