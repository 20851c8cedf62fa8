"""Tablets over HTTP: where they lie, what the balancer does next, the move of one by hand, and switching the
balancer on and off.

Invariant: a move, or a switch, is one entry, which refuses or begins it; a dry run asks the same entry and
submits nothing.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from lockstep.documents.tablets import Replica, TabletMoved
from lockstep.node.services import NodeServices
from lockstep.placement.tablets.map import Tablet, TabletMap
from lockstep.server.admin.http import HttpRequest
from lockstep.server.admin.operations import Operation, Parameter, get, later, read_body
from lockstep.server.reports.tablet_plans import tablet_plan
from lockstep.server.reports.tablets import table_named, tablet_map, tablet_tables
from lockstep.topology.tablets.balancing import SetBalancing
from lockstep.topology.tablets.moves import BeginMoves, TabletMove
from lockstep.topology.tablets.stages import INTRANODE, MIGRATION
from lockstep.values.errors import ConfigurationError
from lockstep.values.ids import NodeId
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN

PATH: Final = "/v1/tablets"
_MOVE_BODY: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["keyspace", "table", "from", "to"],
    "properties": {
        "keyspace": {"type": "string"},
        "table": {"type": "string"},
        "tablet": {"type": "integer", "description": "Its number, in the order of tokens from 0"},
        "token": {"type": "integer", "description": "A token of it, instead of its number"},
        "from": {"type": "integer", "description": "The node that gives its replica up"},
        "to": {"type": "integer", "description": "The node that gets it"},
        "from_shard": {"type": "integer"},
        "to_shard": {"type": "integer"},
        "force": {
            "type": "boolean",
            "description": "Also to another data centre, and to a rack that then has more replicas of it",
        },
        "dry_run": {"type": "boolean"},
    },
}


class _WantedMove(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    keyspace: str
    table: str
    source: int = msgspec.field(name="from")
    target: int = msgspec.field(name="to")
    tablet: int | None = None
    token: int | None = None
    from_shard: int = 0
    to_shard: int = 0
    force: bool = False
    dry_run: bool = False


class _WantedSwitch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """With `table` (KEYSPACE.TABLE) of that one alone."""

    is_on: bool = msgspec.field(name="on")
    table: str = ""


_SWITCH_BODY: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["on"],
    "properties": {
        "on": {"type": "boolean"},
        "table": {"type": "string", "description": "KEYSPACE.TABLE; all tables when absent"},
    },
}


class TabletRequests:
    def __init__(self, node: NodeServices) -> None:
        self._node = node

    def operations(self) -> list[Operation]:
        return [
            get(
                PATH,
                "The tables that spread by tablets, or the tablets of one",
                later(self._shown),
                Parameter("keyspace", "Only tables of this keyspace"),
                Parameter("table", "The tablets of this table of the keyspace, with their sizes"),
            ),
            Operation(
                "POST",
                PATH + "/move",
                "Begin to move a replica of a tablet, or say with dry_run what it would do",
                later(lambda request, _: self.move(request.body)),
                "The move",
                body=_MOVE_BODY,
            ),
            get(
                PATH + "/plan",
                "What the balancer of tablets moves now and later, what waits, and why",
                later(lambda request, _: tablet_plan(self._node, request.query.get("explain", ""))),
                Parameter("explain", "KEYSPACE.TABLE:N, a tablet: also why it moves or not"),
            ),
            Operation(
                "POST",
                PATH + "/balance",
                "Switch the balancer of tablets on or off, for all tables or for one",
                later(lambda request, _: self.balance(request.body)),
                "The epoch since which it is so",
                body=_SWITCH_BODY,
            ),
        ]

    async def _shown(self, request: HttpRequest, _: dict[str, str]) -> Any:
        keyspace, table = request.query.get("keyspace", ""), request.query.get("table", "")
        if table:
            return await tablet_map(self._node, keyspace, table)
        return tablet_tables(self._node.log.cluster, keyspace)

    async def move(self, body: Any) -> TabletMoved:
        """Begin it. ConfigurationError, Rejected."""
        wanted = read_body(body, _WantedMove, "not a move of a tablet")
        cluster = self._node.log.cluster
        _, group = table_named(cluster, wanted.keyspace, wanted.table)
        number, tablet = _chosen(group.map(cluster.placements), wanted)
        course = INTRANODE if wanted.source == wanted.target else MIGRATION
        one = TabletMove(
            group.id,
            tablet.right,
            course.name,
            (NodeId(wanted.source), wanted.from_shard),
            (NodeId(wanted.target), wanted.to_shard),
        )
        entry = BeginMoves(0, (one,), wanted.force)
        if wanted.dry_run:
            epoch = cluster.epoch
            entry.apply(cluster, epoch + 1)
        else:
            epoch = await self._node.log.submit(entry)
        return TabletMoved(
            keyspace=wanted.keyspace,
            table=wanted.table,
            tablet=number,
            start=tablet.range.left,
            end=tablet.right,
            kind=course.name,
            replicas=_places(tablet.replicas),
            next=_places(tuple(one.target if at[0] == one.source[0] else at for at in tablet.replicas)),
            epoch=epoch,
            dry_run=wanted.dry_run,
        )

    async def balance(self, body: Any) -> dict[str, Any]:
        """Switch the balancer. ConfigurationError for a wrong wish, Rejected where nothing would change."""
        wanted = read_body(body or {}, _WantedSwitch, "the body is no such wish")
        group = 0
        if wanted.table:
            keyspace, _, table = wanted.table.partition(".")
            if not table:
                raise ConfigurationError(f"{wanted.table} is no KEYSPACE.TABLE")
            group = table_named(self._node.log.cluster, keyspace, table)[1].id
        epoch = await self._node.log.submit(SetBalancing(wanted.is_on, group))
        return {"schema": "tablet-balance/1", "epoch": epoch, "on": wanted.is_on, "table": wanted.table}


def _places(replicas: tuple[tuple[NodeId, int], ...]) -> tuple[Replica, ...]:
    return tuple(Replica(int(node), shard) for node, shard in replicas)


def _chosen(made: TabletMap, wanted: _WantedMove) -> tuple[int, Tablet]:
    """Its number and itself, by number or token."""
    name = f"{wanted.keyspace}.{wanted.table}"
    if (wanted.tablet is None) == (wanted.token is None):
        raise ConfigurationError("say one of tablet and token")
    if wanted.token is not None:
        if not TOKEN_MIN < wanted.token <= TOKEN_MAX:
            raise ConfigurationError(f"{wanted.token} is no token")
        found = made.at(wanted.token)
        number = next(n for n, placed in enumerate(made.ring.ranges) if placed.range.right == found.right)
        return number, found
    number = wanted.tablet or 0
    if not 0 <= number < made.count:
        raise ConfigurationError(
            f"table {name} has no tablet {number}",
            hint=f"it has {made.count}, counted from 0: `lockstep tablets list {name}`",
        )
    return number, made.at(made.ring.ranges[number].range.right)
