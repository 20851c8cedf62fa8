"""Conditions and degraded ranges as rows of `system_views`, and the answers of health probes.

Invariant: rows and answers are made of the findings that `status` shows; nothing is kept here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from lockstep.metadata.directory import OWNING_STATES
from lockstep.server.conditions import document, found_by
from lockstep.server.hint_views import LiveView
from lockstep.server.http import HttpRequest, HttpResponse, json_response
from lockstep.server.operations import Operation
from lockstep.server.virtual_rows import VirtualRow
from lockstep.topology.health import degraded_of, level_of, verdict

if TYPE_CHECKING:
    from lockstep.node.node import Node

CONDITIONS: Final = (
    "code text; node_id int; subject text; level text; since timestamp; detail text; summary text; "
    "at_risk text; hint text; page text"
)
DEGRADED_RANGES: Final = (
    "keyspace_name text; start_token bigint; end_token bigint; since_epoch bigint; missing list<int>; "
    "writes_may_be_nowhere boolean"
)
#: Not ready, but well: probes and load balancers send clients elsewhere.
_NOT_READY: Final = 503


def condition_rows(node: Node) -> Iterator[VirtualRow]:
    for finding in found_by(node):
        told = document(finding, node.node_id)
        since_us = finding.condition.since_us
        yield {**told, "node_id": finding.node, "since": since_us // 1000 if since_us else None}


def degraded_rows(node: Node) -> Iterator[VirtualRow]:
    cluster = node.cluster
    for keyspace in cluster.schema.keyspaces:
        for line in degraded_of(cluster, keyspace):
            yield {
                "keyspace_name": keyspace.name,
                "start_token": line.range.left,
                "end_token": line.range.right,
                "since_epoch": line.since_epoch,
                "missing": list(line.lacking),
                "writes_may_be_nowhere": not line.missing,
            }


CONDITION_VIEWS: Final = (
    LiveView(
        "conditions",
        CONDITIONS,
        ("code",),
        ("node_id", "subject"),
        condition_rows,
        "What is wrong with the cluster as this node sees it; node 0: with the whole cluster",
    ),
    LiveView(
        "degraded_ranges",
        DEGRADED_RANGES,
        ("keyspace_name",),
        ("start_token", "since_epoch"),
        degraded_rows,
        "Ranges that may lack writes since a node was given up by force, until they are repaired",
    ),
)


def why_not_ready(node: Node) -> list[str]:
    """Why clients should use other nodes; empty when this one serves them and is in the ring."""
    info, reasons = node.info, []
    if node.state.broken is not None:
        reasons.append(f"it serves no more: {node.state.broken}")
    elif info is not None and info.id in node.cluster.excluded_by_node:
        reasons.append(f"it is excluded: {node.cluster.excluded_by_node[info.id].reason}")
    elif any(one.code == "NODE_DRAINED" for one in node.conditions.current()):
        reasons.append("it was drained")
    elif info is None:
        reasons.append("it is no member of the cluster yet")
    elif info.state not in OWNING_STATES:
        reasons.append(f"it is {info.state.value}, not in the ring")
    elif not node.ready:
        reasons.append("it starts or stops")
    return reasons


def health_operations(node: Node) -> list[Operation]:
    """What probes ask, without a credential where settings allow it."""

    async def live(_request: HttpRequest, _values: dict[str, str]) -> HttpResponse:
        return json_response({"schema": "health/1", "live": True, "node": node.node_id or None})

    async def ready(_request: HttpRequest, _values: dict[str, str]) -> HttpResponse:
        reasons, found = why_not_ready(node), found_by(node)
        answer: dict[str, Any] = {
            "schema": "health/1",
            "ready": not reasons,
            "node": node.node_id or None,
            "reasons": reasons,
            "level": level_of(found).word,
            "verdict": verdict(found, node.node_id, running=bool(node.cluster.operations)),
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
