"""Splits and merges of tablets over HTTP, as somebody asks for them.

Invariant: what is asked for is one entry, which refuses or begins it; a dry run asks the same entry and
submits nothing.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from lockstep.documents.tablets import TabletsResized
from lockstep.node.services import NodeServices
from lockstep.placement.tablets.map import TabletMap
from lockstep.placement.tablets.resize import ResizeKind, apart
from lockstep.server.admin.operations import Operation, later, read_body
from lockstep.server.reports.tablets import table_named
from lockstep.topology.tablets.asked import AskResize, count_after
from lockstep.values.errors import ConfigurationError

RESIZE_PATH: Final = "/v1/tablets/resize"
_BODY: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["keyspace", "table", "kind"],
    "properties": {
        "keyspace": {"type": "string"},
        "table": {"type": "string"},
        "kind": {
            "type": "string",
            "enum": ["split", "merge", "none"],
            "description": "none takes back what is decided and has not ended",
        },
        "tablet": {
            "type": "integer",
            "description": "Only this one, by its number; of a merge, with the one behind it",
        },
        "dry_run": {"type": "boolean"},
    },
}


class _Wanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    keyspace: str
    table: str
    kind: Literal["split", "merge", "none"]
    tablet: int | None = None
    dry_run: bool = False


class ResizeRequests:
    def __init__(self, node: NodeServices) -> None:
        self._node = node

    def operations(self) -> list[Operation]:
        """For the admin API."""
        return [
            Operation(
                "POST",
                RESIZE_PATH,
                "Split or merge the tablets of a table, or one, or take that back; or say what it would do",
                later(lambda request, _: self.resize(request.body)),
                "The decision",
                body=_BODY,
            )
        ]

    async def resize(self, body: Any) -> TabletsResized:
        """Decide it. ConfigurationError for a wrong wish, Rejected where it cannot be."""
        wanted = read_body(body or {}, _Wanted, "not a split or merge of tablets")
        cluster = self._node.log.cluster
        _, group = table_named(cluster, wanted.keyspace, wanted.table)
        map_ = group.map(cluster.placements)
        kind = ResizeKind[wanted.kind.upper()]
        if kind is ResizeKind.NONE and wanted.tablet is not None:
            raise ConfigurationError("what is decided of a table is taken back as a whole")
        entry = AskResize(group.id, kind, _right(map_, wanted))
        decision = entry.wanted(group, map_)
        if wanted.dry_run:
            epoch = cluster.epoch
            entry.apply(cluster, epoch + 1)
        else:
            epoch = await self._node.log.submit(entry)
        return TabletsResized(
            keyspace=wanted.keyspace,
            table=wanted.table,
            kind=wanted.kind,
            tablet=wanted.tablet,
            number=decision.sequence,
            tablets=map_.count,
            after=count_after(map_, decision),
            apart=len(apart(map_, decision)) if kind is ResizeKind.MERGE else 0,
            epoch=epoch,
            dry_run=wanted.dry_run,
        )


def _right(map_: TabletMap, wanted: _Wanted) -> int | None:
    """The last token of the tablet that is named."""
    if wanted.tablet is None:
        return None
    if not 0 <= wanted.tablet < map_.count:
        name = f"{wanted.keyspace}.{wanted.table}"
        raise ConfigurationError(
            f"table {name} has no tablet {wanted.tablet}",
            hint=f"it has {map_.count}, counted from 0: `lockstep tablets list {name}`",
        )
    return map_.ring.ranges[wanted.tablet].range.right
