"""`system_distributed`: what tools look for there, as far as it is known here.

Invariant: the tables are views of what builds of materialized views keep; nothing is kept here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from lockstep.schema.types import parse_uuid
from lockstep.server.view_build_rows import built_rows, in_progress_rows
from lockstep.server.virtual import VirtualTable, define
from lockstep.server.virtual_rows import VirtualRow

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
            lambda: _view_builds(node),
            comment="Materialized views that the node asked has built, or builds",
        )
    ]


def _view_builds(node: Node) -> Iterator[VirtualRow]:
    host_id = parse_uuid(node.identity.value.host_id)
    for status, rows in (("SUCCESS", built_rows(node)), ("STARTED", in_progress_rows(node))):
        for row in rows:
            yield {
                "keyspace_name": row["keyspace_name"],
                "view_name": row["view_name"],
                "host_id": host_id,
                "status": status,
            }
