"""What the admin API says of a node, its cluster and their features, as JSON documents.

Invariant: functions of the metadata value, of its log and of live counters; nothing is kept here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from lockstep.cql.compile.prepared import Catalog
from lockstep.cql.ddl.describe import keyspace_statement, table_statement
from lockstep.documents.requests import Change, MetadataDiff
from lockstep.documents.service import LoggedEntries, LoggedEntry
from lockstep.documents.status import (
    Description,
    Excluded,
    Feature,
    Features,
    ListedNode,
    Nodes,
    PlacedRange,
    Placements,
    Statement,
)
from lockstep.metadata import features
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.directory import FEATURES, NodeInfo, NodeState
from lockstep.metadata.log.apply import diff
from lockstep.metadata.log.comparison import ABSENT, text_of
from lockstep.metadata.log.entries import LogEntry
from lockstep.node.log.metadata_past import Past
from lockstep.node.services import NodeServices
from lockstep.schema.model import Replication
from lockstep.schema.types import uuid_text
from lockstep.server.reports import leader_views
from lockstep.server.reports.stories import entry_summary, kind_name
from lockstep.server.views import live_views
from lockstep.server.views.live_views import seen_epoch
from lockstep.server.views.load_views import load_run
from lockstep.server.views.read_session_views import read_session_rows
from lockstep.topology.health import level_of, verdict
from lockstep.topology.roles import readers
from lockstep.values.errors import ConfigurationError, LogTruncated
from lockstep.values.limits import LOG_FETCH_ENTRIES_MAX
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN

Document = dict[str, Any]


def status(node: NodeServices, operations: Sequence[Document]) -> Document:
    cluster = node.log.cluster
    info = node.context.info
    found = live_views.found_by(node)
    return {
        "schema": "status/1",
        "ready": node.life.ready,
        "cluster": {"id": cluster.identity.cluster_id, "name": cluster.identity.cluster_name},
        "epoch": cluster.epoch,
        "hash": cluster.hash.hex(),
        "node": {
            "id": node.context.own_id(),
            "host_id": node.context.identity.value.host_id,
            "address": info.address if info is not None else node.context.address[0],
        },
        "leader": node.log.leader_id,
        "level": level_of(found).word,
        "verdict": verdict(found, node.context.own_id(), running=bool(cluster.operations)),
        "conditions": [live_views.document(one, node.context.own_id()) for one in found],
        "broken": str(node.log.state.broken) if node.log.state.broken is not None else None,
        "frozen": cluster.service.frozen,
        "excluded": exclusions(cluster),
        "groups": leader_views.words(node),
        "nodes": node_list(node),
        "operations": list(operations),
        "loads": [msgspec.to_builtins(load_run(node, load)) for load in cluster.loads.running],
        "read_sessions": list(read_session_rows(node)),
        "ring_mode": cluster.ring_mode,
    }


def exclusions(cluster: ClusterMetadata) -> list[Excluded]:
    """Who is shut out, since when and why."""
    return [Excluded(one.node, one.epoch, one.reason) for one in cluster.excluded]


def nodes(node: NodeServices) -> Nodes:
    return Nodes(epoch=node.log.cluster.epoch, nodes=node_list(node))


def node_list(node: NodeServices) -> tuple[ListedNode, ...]:
    """Every node that has not left."""
    cluster = node.log.cluster
    shares = ring_shares(cluster)
    return tuple(
        _node(node, info, shares.get(info.id, 0.0))
        for info in cluster.directory.nodes
        if info.state is not NodeState.LEFT
    )


def _node(node: NodeServices, info: NodeInfo, owns: float) -> ListedNode:
    return ListedNode(
        id=info.id,
        host_id=info.host_id,
        address=info.address,
        cql_port=info.cql_port,
        internode_port=info.internode_port,
        admin_port=info.admin_port,
        dc=info.dc,
        rack=info.rack,
        state=info.state.value,
        alive=node.membership.liveness.alive(info.id),
        excluded=info.id in node.log.cluster.excluded_by_node,
        tokens=len(info.tokens),
        owns=owns,
        voter=info.id in node.log.cluster.voters,
        epoch=seen_epoch(node, info.id),
    )


def ring_shares(cluster: ClusterMetadata) -> dict[int, float]:
    """Share of all tokens for which each node is the primary owner."""
    owners = list(zip(cluster.directory.circle.tokens, cluster.directory.circle.nodes, strict=True))
    if not owners:
        return {}
    whole = TOKEN_MAX - TOKEN_MIN
    shares: dict[int, float] = {}
    before = owners[-1][0] - whole
    for token, owner in owners:
        shares[owner] = shares.get(owner, 0.0) + (token - before) / whole
        before = token
    return shares


def placements(node: NodeServices, keyspace_name: str, table_name: str = "") -> Placements:
    """Of a keyspace, or of a table, which has its own where its keyspace has tablets. ConfigurationError."""
    cluster = node.log.cluster
    keyspace = cluster.schema.by_name.get(keyspace_name)
    if keyspace is None:
        raise ConfigurationError(f"there is no keyspace {keyspace_name}")
    table = keyspace.by_name.get(table_name)
    if table_name and table is None:
        raise ConfigurationError(
            f"there is no table {keyspace_name}.{table_name}", hint=f"lockstep describe {keyspace_name}"
        )
    if keyspace.tablets is not None and table is None:
        raise ConfigurationError(
            f"keyspace {keyspace_name} has tablets: each of its tables has ranges of its own",
            hint=f"lockstep ring {keyspace_name}.TABLE (its tables: `lockstep tablets list {keyspace_name}`)",
        )
    group = table.group if keyspace.tablets is not None and table is not None else keyspace.group
    ring = cluster.placements.ring(group)
    ranges = (
        PlacedRange(
            placed.range.left,
            placed.range.right,
            placed.group.reads,
            placed.group.writes,
            placed.group.epoch,
            tuple(one for one in placed.group.reads if one not in shown),
        )
        for placed in ring.ranges
        for shown in (readers(cluster, ring, placed),)
    )
    return Placements(keyspace=keyspace_name, table=table_name, epoch=cluster.epoch, ranges=tuple(ranges))


def describe(catalog: Catalog, keyspace_name: str, table_name: str | None) -> Description:
    found = catalog.schema.by_name.get(keyspace_name) or catalog.virtual.by_name.get(keyspace_name)
    if found is None:
        raise ConfigurationError(f"there is no keyspace {keyspace_name}")
    statements: list[Statement] = []
    if table_name is None:
        statements.append(Statement("keyspace", found.name, keyspace_statement(found)))
    one = found.by_name.get(table_name) if table_name is not None else None
    for table in found.tables if table_name is None else (one,):
        if table is not None:
            statements.append(Statement("table", table.name, table_statement(table)))
    if not statements:
        raise ConfigurationError(f"there is no table {keyspace_name}.{table_name}")
    return Description(keyspace=keyspace_name, statements=tuple(statements))


# -- the metadata and its log -----------------------------------------------------------------------


async def metadata_at(node: NodeServices, epoch: int | None) -> ClusterMetadata:
    """The value at an epoch. ConfigurationError for one that is yet to come; LogTruncated for one that this
    node keeps no more."""
    newest = node.log.cluster
    if epoch is None or epoch == newest.epoch:
        return newest
    return await Past(node.log.state).value_at(epoch)


def metadata(value: ClusterMetadata) -> Document:
    return {
        "schema": "metadata/1",
        "epoch": value.epoch,
        "hash": value.hash.hex(),
        "cluster": _fields(value.identity),
        "voters": list(value.voters),
        "service": _fields(value.service),
        "nodes": [_fields(info) for info in value.directory.nodes],
        "keyspaces": [
            {
                "name": keyspace.name,
                "replication": _replication_text(keyspace.replication),
                "tables": [table.name for table in keyspace.tables],
                "epoch": keyspace.epoch,
            }
            for keyspace in value.schema.keyspaces
        ],
        "operations": [_fields(operation) for operation in value.operations],
        "transitions": [_fields(transition) for transition in value.transitions.listed()],
        "sessions": [_fields(session) for session in value.sessions],
        "requests": [_fields(r) for r in (*value.requests.live, *value.requests.ended)],
        "excluded": [_fields(exclusion) for exclusion in value.excluded],
        "extensions": {name: text_of(data) for name, data in value.extensions.items()},
    }


def _replication_text(replication: Replication) -> str:
    """`NetworkTopologyStrategy dc1: 3` or `SimpleStrategy 2`."""
    factors = ", ".join(f"{dc}: {factor}" if dc else factor for dc, factor in replication.factor_texts)
    return f"{replication.strategy} {factors}"


def _fields(value: msgspec.Struct) -> Document:
    """A struct by the names of its fields; what is no plain value as text."""
    found: Document = {}
    for name in value.__struct_fields__:
        field = getattr(value, name)
        plain = field is None or isinstance(field, bool | int | float) or type(field) is str
        found[name] = field if plain else text_of(field)
    return found


def metadata_diff(one: ClusterMetadata, other: ClusterMetadata) -> MetadataDiff:
    changes = (
        Change(
            found.path,
            None if found.before == ABSENT else found.before,
            None if found.after == ABSENT else found.after,
        )
        for found in diff(one, other)
    )
    return MetadataDiff("metadata-diff/1", one.epoch, other.epoch, tuple(changes))


def metadata_log(node: NodeServices, first: int, last: int, *, available: bool = False) -> LoggedEntries:
    """At most LOG_FETCH_ENTRIES_MAX entries from `first` on, also from the archive. LogTruncated when the
    first is nowhere, unless what is `available` here will do."""
    if first < 1 or last < first:
        raise ConfigurationError(f"epochs {first} to {last} are no range; the first epoch is 1")
    oldest = node.log.state.first_epoch
    if available:
        first = max(first, oldest)
    last_wanted = min(last, first - 1 + LOG_FETCH_ENTRIES_MAX)
    try:
        chosen = Past(node.log.state).entries(first, last_wanted)
    except LogTruncated as nowhere:
        raise LogTruncated(
            f"this node has the log from epoch {oldest} on, not epoch {first}", oldest, hint=nowhere.hint
        ) from None
    entries = tuple(_entry(node, entry) for entry in chosen)
    return LoggedEntries(oldest=oldest, first=first, last=last, entries=entries)


def _entry(node: NodeServices, entry: LogEntry) -> LoggedEntry:
    return LoggedEntry(
        epoch=entry.epoch,
        entry_id=uuid_text(entry.entry_id),
        kind=kind_name(entry.kind),
        actor=entry.actor,
        term=entry.term,
        committed_at_us=entry.commit_time_us,
        previous_hash=entry.previous_hash.hex(),
        hash=entry.hash.hex(),
        summary=entry_summary(node.log.registry, entry),
    )


PATH = "/v1/features"


def report(node: NodeServices) -> Features:
    """Every feature that some node supports: whether it is enabled, and else what it waits for."""
    cluster = node.log.cluster
    present = [info for info in cluster.directory.nodes if info.state is not NodeState.LEFT]
    names = sorted({*cluster.features_enabled, *(name for info in present for name in info.features)})
    due = features.due(cluster)
    waits = tuple(blocking.reason for blocking in node.work.topology.blocking if not blocking.operation_id)
    listed = (
        Feature(
            name=name,
            description=FEATURES.get(name, "not known to this version"),
            enabled=name in cluster.features_enabled,
            supported_by=tuple(info.id for info in present if name in info.features),
            lacking=features.unsupporting(cluster.directory, name),
            waits=tuple(reason for reason in waits if name in reason) if name in due else (),
        )
        for name in names
    )
    announced_epoch = cluster.features.announced_epoch
    return Features(epoch=cluster.epoch, announced_epoch=announced_epoch, features=tuple(listed))
