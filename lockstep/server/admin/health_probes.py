"""The answers of health probes.

Invariant: answers are made of the findings that `status` shows; nothing is kept here.
"""

from __future__ import annotations

from typing import Any, Final

from lockstep.metadata.directory import OWNING_STATES
from lockstep.node.services import NodeServices
from lockstep.server.admin.http import HttpRequest, HttpResponse, json_response
from lockstep.server.admin.operations import Operation
from lockstep.server.reports.conditions import found_by
from lockstep.topology.health import level_of, verdict

#: Not ready, but well: probes and load balancers send clients elsewhere.
_NOT_READY: Final = 503


def why_not_ready(node: NodeServices) -> list[str]:
    """Why clients should use other nodes; empty when this one serves them and is in the ring."""
    info, reasons = node.context.info, []
    if node.log.state.broken is not None:
        reasons.append(f"it serves no more: {node.log.state.broken}")
    elif info is not None and info.id in node.log.cluster.excluded_by_node:
        reasons.append(f"it is excluded: {node.log.cluster.excluded_by_node[info.id].reason}")
    elif any(one.code == "NODE_DRAINED" for one in node.context.conditions.current()):
        reasons.append("it was drained")
    elif info is None:
        reasons.append("it is no member of the cluster yet")
    elif info.state not in OWNING_STATES:
        reasons.append(f"it is {info.state.value}, not in the ring")
    elif not node.life.ready:
        reasons.append("it starts or stops")
    return reasons


def health_operations(node: NodeServices) -> list[Operation]:
    """What probes ask, without a credential where settings allow it."""

    async def live(_request: HttpRequest, _values: dict[str, str]) -> HttpResponse:
        return json_response({"schema": "health/1", "live": True, "node": node.context.own_id() or None})

    async def ready(_request: HttpRequest, _values: dict[str, str]) -> HttpResponse:
        reasons, found = why_not_ready(node), found_by(node)
        answer: dict[str, Any] = {
            "schema": "health/1",
            "ready": not reasons,
            "node": node.context.own_id() or None,
            "reasons": reasons,
            "level": level_of(found).word,
            "verdict": verdict(found, node.context.own_id(), running=bool(node.log.cluster.operations)),
        }
        return json_response(answer, _NOT_READY if reasons else 200)

    return [
        Operation("GET", "/health/live", "Whether the process runs its loop", live, "It does"),
        Operation(
            "GET",
            "/health/ready",
            "Whether the node serves clients and is in the ring",
            ready,
            "It does; 503 with the reasons when it does not, whatever the verdict on the cluster",
        ),
    ]
