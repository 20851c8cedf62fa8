"""Which materialized views this node has built, and how far it is with the others: rows of `system`, and the
warning of who reads them.

Invariant: read from what the builds themselves keep; nothing is kept here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from lockstep.node.view_builds import Build
from lockstep.schema.model import Table
from lockstep.server.samples import Sample
from lockstep.server.virtual_rows import VirtualRow
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN

if TYPE_CHECKING:
    from lockstep.node.node import Node

IN_PROGRESS_COLUMNS = (
    "keyspace_name text; view_name text; start_token text; end_token text; last_token text; keys_built bigint"
)


def built_rows(node: Node) -> Iterator[VirtualRow]:
    for view, build in _builds(node):
        if build.done:
            yield {"keyspace_name": view.keyspace, "view_name": view.name, "status_replicated": True}


def in_progress_rows(node: Node) -> Iterator[VirtualRow]:
    for view, build in _builds(node):
        if not build.done:
            yield {
                "keyspace_name": view.keyspace,
                "view_name": view.name,
                "start_token": str(TOKEN_MIN),
                "end_token": str(TOKEN_MAX),
                "last_token": str(build.covered[-1][1] if build.covered else TOKEN_MIN),
                "keys_built": build.partitions,
            }


def build_warning(node: Node, table: Table) -> str:
    """What clients are told that read a view which this node is still building; else empty."""
    if table.view is None:
        return ""
    build = node.view_builds.builds.get(table.id)
    if build is not None and build.done:
        return ""
    return (
        f"Materialized view {table.keyspace}.{table.name} is still being built: rows may be missing "
        "(see system.view_builds_in_progress)"
    )


def view_samples(node: Node) -> Iterator[Sample]:
    log = node.view_log
    for target, count in (("paired", log.paired), ("all", log.spread)):
        yield Sample(
            "lockstep_views_updates_total",
            "Updates of views derived here, and sent to one replica or to all",
            "counter",
            count,
            (("replicas", target),),
        )
    yield Sample(
        "lockstep_views_records_in_flight", "Writes whose view updates are being sent", "gauge", log.in_flight
    )
    yield Sample(
        "lockstep_views_left_to_replay_total",
        "Of those, left to the batch log",
        "counter",
        log.left_to_replay,
    )
    building = sum(not build.done for _, build in _builds(node))
    yield Sample("lockstep_views_building", "Views that this node builds", "gauge", building)


def _builds(node: Node) -> list[tuple[Table, Build]]:
    tables = node.cluster.schema.tables_by_id
    found = ((tables.get(table_id), build) for table_id, build in sorted(node.view_builds.builds.items()))
    return [(view, build) for view, build in found if view is not None]
