"""Tablets for the admin API: where they lie, what the balancer does next, and switching it on and off.

Invariant: a switch becomes an entry of the log and nothing else.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from lockstep.node.services import NodeServices
from lockstep.server.admin.http import HttpRequest
from lockstep.server.admin.operations import Operation, Parameter, get, later
from lockstep.server.reports.tablet_plans import tablet_plan
from lockstep.server.reports.tablets import table_named, tablet_map, tablet_tables
from lockstep.topology.tablets.switch import SetBalancing
from lockstep.values.errors import ConfigurationError

Document = dict[str, Any]

PATH: Final = "/v1/tablets"
PLAN_PATH: Final = "/v1/tablets/plan"
BALANCE_PATH: Final = "/v1/tablets/balance"


class _Wanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """With `table` (KEYSPACE.TABLE) of that one alone."""

    is_on: bool = msgspec.field(name="on")
    table: str = ""


_BODY: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["on"],
    "properties": {
        "on": {"type": "boolean"},
        "table": {"type": "string", "description": "KEYSPACE.TABLE; all tables when absent"},
    },
}


class BalancerRequests:
    def __init__(self, node: NodeServices) -> None:
        self._node = node

    async def _shown(self, request: HttpRequest, _: dict[str, str]) -> Any:
        keyspace, table = request.query.get("keyspace", ""), request.query.get("table", "")
        if table:
            return await tablet_map(self._node, keyspace, table)
        return tablet_tables(self._node.log.cluster, keyspace)

    async def balance(self, body: Any) -> Document:
        """Switch the balancer. ConfigurationError for a wrong wish, Rejected where nothing would change."""
        try:
            wanted = msgspec.convert(body or {}, _Wanted)
        except msgspec.ValidationError as error:
            raise ConfigurationError(f"the body is no such wish: {error}") from error
        group = 0
        if wanted.table:
            keyspace, _, table = wanted.table.partition(".")
            if not table:
                raise ConfigurationError(f"{wanted.table} is no KEYSPACE.TABLE")
            group = table_named(self._node.log.cluster, keyspace, table)[1].id
        epoch = await self._node.log.submit(SetBalancing(wanted.is_on, group))
        return {"schema": "tablet-balance/1", "epoch": epoch, "on": wanted.is_on, "table": wanted.table}

    def operations(self) -> list[Operation]:
        """For the admin API."""
        return [
            get(
                PATH,
                "The tables that spread by tablets, or the tablets of one",
                later(self._shown),
                Parameter("keyspace", "Only tables of this keyspace"),
                Parameter("table", "The tablets of this table of the keyspace, with their sizes"),
            ),
            get(
                PLAN_PATH,
                "What the balancer of tablets moves now and later, what waits, and why",
                later(lambda request, _: tablet_plan(self._node, request.query.get("explain", ""))),
                Parameter("explain", "KEYSPACE.TABLE:N, a tablet: also why it moves or not"),
            ),
            Operation(
                "POST",
                BALANCE_PATH,
                "Switch the balancer of tablets on or off, for all tables or for one",
                later(lambda request, _: self.balance(request.body)),
                "The epoch since which it is so",
                body=_BODY,
            ),
        ]
