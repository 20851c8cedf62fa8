"""`system_distributed`: what tools look for there, as far as it is known here.

Invariant: the tables are views of what builds of materialized views keep; nothing is kept here.
"""

from __future__ import annotations

from lockstep.node.services import NodeServices
from lockstep.server.views.view_build_rows import status_rows
from lockstep.server.views.virtual import VirtualTable, define


def distributed_tables(node: NodeServices) -> list[VirtualTable]:
    return [
        define(
            "system_distributed",
            "view_build_status",
            "keyspace_name text; view_name text; host_id uuid; status text",
            ("keyspace_name", "view_name"),
            ("host_id",),
            lambda: status_rows(node),
            comment="Which nodes have built which materialized views, or build them",
        )
    ]
