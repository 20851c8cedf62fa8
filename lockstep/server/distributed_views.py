"""`system_distributed`: what tools look for there, as far as it is known here.

Invariant: the tables are views of what builds of materialized views keep; nothing is kept here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.server.view_build_rows import status_rows
from lockstep.server.virtual import VirtualTable, define

if TYPE_CHECKING:
    from lockstep.node.node import Node


def distributed_tables(node: Node) -> list[VirtualTable]:
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
