"""Conditions and degraded ranges as rows of `system_views`.

Invariant: rows are made of the findings that `status` shows; nothing is kept here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from lockstep.server.conditions import document, found_by
from lockstep.server.hint_views import LiveView
from lockstep.server.virtual_rows import VirtualRow
from lockstep.topology.health import degraded_of

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
        "Ranges that may lack writes since a node was given up by force or left, until they are repaired",
    ),
)
