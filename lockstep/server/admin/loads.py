"""Bulk loads for the admin API: which run or ended lately, and the end of one that runs.

Invariant: a cancelled load is ended by an entry of the log, once; one that was committed is part of its
table, and that it cannot be cancelled is told, whoever was first.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from lockstep.documents.runs import LoadEnd, Loads
from lockstep.metadata.loads import Load, LoadState
from lockstep.node.services import NodeServices
from lockstep.replica.load_requests import AbortRequest
from lockstep.server.admin.operations import Operation, get, later, now, read_body
from lockstep.server.views.load_views import load_run
from lockstep.values.errors import PreconditionError

PATH: Final = "/v1/loads"
CANCEL_PATH: Final = "/v1/loads/cancel"
_BODY: Final = {
    "type": "object",
    "properties": {
        "job": {"type": "string"},
        "reason": {"type": "string"},
        "dry_run": {"type": "boolean"},
    },
    "required": ["job"],
}


class Wanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    job: str
    reason: str = "an operator cancelled it"
    dry_run: bool = False


def load_operations(node: NodeServices) -> list[Operation]:
    """For the admin API."""

    async def cancel(request: Any, _values: dict[str, str]) -> dict[str, Any]:
        wanted = read_body(request.body, Wanted, "not a load to cancel")
        load = load_run(node, await _cancelled(node, wanted))
        told: dict[str, Any] = msgspec.to_builtins(LoadEnd(dry_run=wanted.dry_run, load=load))
        return told

    return [
        get(PATH, "Bulk loads that run, and that ended lately", now(lambda *_: loads(node))),
        Operation(
            "POST",
            CANCEL_PATH,
            "End a bulk load that runs, or say with dry_run what that would do",
            later(cancel),
            "The load",
            body=_BODY,
        ),
    ]


def loads(node: NodeServices) -> dict[str, Any]:
    """As `loads/1`: running ones in the order in which they began, then ended ones, the last one first."""
    known = node.log.cluster.loads
    told = tuple(load_run(node, load) for load in (*known.running, *reversed(known.ended)))
    found: dict[str, Any] = msgspec.to_builtins(
        Loads(node=node.context.own_id(), epoch=node.log.cluster.epoch, loads=told)
    )
    return found


async def _cancelled(node: NodeServices, wanted: Wanted) -> Load:
    """The load as it is then. Rejected when there is none, PreconditionError when it was committed."""
    bulk = node.work.bulk_loads
    load = bulk.load(wanted.job)
    if load.state is LoadState.RUNNING and not wanted.dry_run:
        await bulk.abort(AbortRequest(wanted.job, wanted.reason))
        load = bulk.load(wanted.job)
    if load.state is LoadState.COMMITTED:
        raise PreconditionError(
            f"load {wanted.job} was committed at epoch {load.ended_epoch}: its {load.rows:,} rows are "
            f"part of {load.keyspace}.{load.table}",
            hint="delete the rows, or load what is to be there instead with mode overwrite",
        )
    return load
