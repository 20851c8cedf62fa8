"""Which materialized views this node has built, and how far it is with the others: rows of `system`, and the
warning of who reads them.

Invariant: read from what the builds themselves keep; nothing is kept here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from lockstep.metadata.directory import OWNING_STATES, NodeInfo
from lockstep.node.services import NodeServices
from lockstep.node.work.view_builds import Build
from lockstep.schema.model import Table
from lockstep.schema.types import parse_uuid
from lockstep.server.metrics.samples import Sample
from lockstep.server.views.virtual_rows import VirtualRow
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN

STARTED: Final = "STARTED"
SUCCESS: Final = "SUCCESS"
UNKNOWN: Final = "UNKNOWN"
IN_PROGRESS_COLUMNS = (
    "keyspace_name text; view_name text; start_token text; end_token text; last_token text; keys_built bigint"
)


def built_rows(node: NodeServices) -> Iterator[VirtualRow]:
    for view, build in _builds(node):
        if build.done:
            yield {"keyspace_name": view.keyspace, "view_name": view.name, "status_replicated": True}


def in_progress_rows(node: NodeServices) -> Iterator[VirtualRow]:
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


def build_warning(node: NodeServices, table: Table) -> str:
    """What clients are told that read a view which some node is still building; else empty."""
    if table.view is None:
        return ""
    build = node.data.view_builds.builds.get(table.id)
    if build is None or all(status != STARTED for _, status in _statuses(node, table.id, build)):
        return ""
    return (
        f"Materialized view {table.keyspace}.{table.name} is still being built: rows may be missing "
        "(see system_distributed.view_build_status)"
    )


def status_rows(node: NodeServices) -> Iterator[VirtualRow]:
    """Of each view and each node, as gossip tells of the others."""
    for view, build in _builds(node):
        for info, status in _statuses(node, view.id, build):
            yield {
                "keyspace_name": view.keyspace,
                "view_name": view.name,
                "host_id": parse_uuid(info.host_id),
                "status": status,
            }


def _statuses(node: NodeServices, view_id: int, build: Build) -> Iterator[tuple[NodeInfo, str]]:
    lacking = node.data.view_builds.lacking()
    for at in node.log.cluster.directory.present_ids:
        info = node.log.cluster.directory.by_id[at]
        if at == node.context.own_id():
            yield info, STARTED if view_id in lacking else SUCCESS
        else:
            yield info, _status_there(node, info, view_id, build.since_epoch)


def _status_there(node: NodeServices, info: NodeInfo, view_id: int, since_epoch: int) -> str:
    """A node that is dead keeps what it last said. Of one that was so before this node's start nothing may be
    known, and rows that it alone has cannot be read from the base either: nobody is warned of that."""
    known = node.membership.gossip.known(info.id)
    if known is not None:
        # Who has no data of its own yet gets views with the ranges, however old what it said is.
        since = since_epoch if info.state in OWNING_STATES else 0
        return STARTED if known.state.may_lack(view_id, since) else SUCCESS
    if info.state not in OWNING_STATES:
        return SUCCESS
    return STARTED if node.membership.liveness.alive(info.id) else UNKNOWN


def view_samples(node: NodeServices) -> Iterator[Sample]:
    log = node.data.view_log
    for target, count in (("paired", log.paired), ("all", log.spread)):
        yield Sample("lockstep_views_updates_total", count, (("replicas", target),))
    yield Sample("lockstep_views_records_in_flight", log.in_flight)
    yield Sample("lockstep_views_left_to_replay_total", log.left_to_replay)
    building = sum(not build.done for _, build in _builds(node))
    yield Sample("lockstep_views_building", building)


def _builds(node: NodeServices) -> list[tuple[Table, Build]]:
    tables = node.log.cluster.schema.tables_by_id
    found = (
        (tables.get(table_id), build) for table_id, build in sorted(node.data.view_builds.builds.items())
    )
    return [(view, build) for view, build in found if view is not None]
