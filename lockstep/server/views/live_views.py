"""`system_views`, continued: what only this node knows now, such as whom it waits for, who is connected, what
gossip brought, and what is wrong with the cluster as this node sees it, also for the admin API and metrics.

Invariant: read from live counters when asked; nothing is kept here. Rows are made of the findings that
`status` shows; nothing is kept here. What a node says of itself comes from its soft state; address, state,
tokens and place come from the metadata of the node that is asked, in the very moment it is asked. One list of
findings serves every place that shows them; it is made when it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Any, Final, Protocol

import msgspec

from lockstep.metadata.directory import NodeInfo, NodeState
from lockstep.node.services import NodeServices
from lockstep.node.settings import masked
from lockstep.schema.types import parse_uuid
from lockstep.server.metrics.metric_table import Sample
from lockstep.server.reports.leader_views import BARRIERS, drivers_rows, leaders_rows
from lockstep.server.views.load_views import LOAD_VIEWS
from lockstep.server.views.read_session_views import READ_SESSION_VIEWS
from lockstep.server.views.tracking_views import TRACKING_VIEWS
from lockstep.server.views.virtual import AskedRows, Between, KeyedRows, VirtualRow, VirtualTable, define
from lockstep.server.views.work_views import (
    CLUSTERING,
    COLUMNS,
    HINT_VIEWS,
    PARTITION,
    REPAIRED,
    REPAIRS,
    LiveView,
    repaired_rows,
    stream_rows,
)
from lockstep.topology.health import Finding, View, degraded_of, findings, level_of
from lockstep.values.conditions import Condition, kind_of
from lockstep.values.errors import ConfigurationError


def found_by(node: NodeServices) -> tuple[Finding, ...]:
    """Everything that is wrong, the worst first."""
    own, alive = node.context.own_id(), node.membership.liveness.alive
    present = [info.id for info in node.log.cluster.directory.nodes if info.state is not NodeState.LEFT]
    reported: dict[int, tuple[Condition, ...]] = {own: node.context.conditions.current()}
    for other in present:
        known = node.membership.gossip.known(other)
        if other != own and known is not None and alive(other):
            reported[other] = known.state.conditions
    living = frozenset(other for other in present if alive(other))
    return findings(node.log.cluster, View(own, living, reported, _not_serving(node, living)))


def _not_serving(node: NodeServices, living: AbstractSet[int]) -> frozenset[int]:
    """Those that say so; who was not heard of yet says nothing."""
    known = (
        (other, node.membership.gossip.known(other))
        for other in sorted(living)
        if other != node.context.own_id()
    )
    others = {other for other, said in known if said is not None and not said.state.ready}
    return frozenset(others if node.life.ready else {*others, node.context.own_id()})


def document(finding: Finding, own: int) -> dict[str, Any]:
    """One entry of `conditions` in a `status/1` document; `node` is null for the whole cluster."""
    condition, kind = finding.condition, finding.kind
    return {
        "code": condition.code,
        "level": finding.level.word,
        "node": finding.node or None,
        "subject": condition.subject,
        "since_us": condition.since_us or None,
        "detail": condition.detail,
        "summary": finding.sentence(own),
        "at_risk": kind.at_risk,
        "hint": finding.hint,
        "page": f"docs/operate/{kind.page}.md",
    }


def condition_samples(node: NodeServices) -> Iterator[Sample]:
    """The node's own conditions, for every node is scraped, and the level of the cluster as it sees it."""
    yield Sample("lockstep_cluster_level", level_of(found_by(node)))
    yield Sample("lockstep_topology_degraded_ranges", len(node.log.cluster.degraded))
    for condition in node.context.conditions.current():
        yield Sample(
            "lockstep_node_condition",
            kind_of(condition).level,
            (("code", condition.code), ("subject", condition.subject)),
        )


CONDITIONS: Final = (
    "code text; node_id int; subject text; level text; since timestamp; detail text; summary text; "
    "at_risk text; hint text; page text"
)
DEGRADED_RANGES: Final = (
    "keyspace_name text; start_token bigint; end_token bigint; since_epoch bigint; missing list<int>; "
    "writes_may_be_nowhere boolean"
)


def condition_rows(node: NodeServices) -> Iterator[VirtualRow]:
    for finding in found_by(node):
        told = document(finding, node.context.own_id())
        since_us = finding.condition.since_us
        yield {**told, "node_id": finding.node, "since": since_us // 1000 if since_us else None}


def degraded_rows(node: NodeServices) -> Iterator[VirtualRow]:
    cluster = node.log.cluster
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


class Client(Protocol):
    """A connection as the clients view shows it."""

    peer: tuple[str, int]
    options: dict[str, str]
    requests_served: int

    @property
    def session(self) -> Any: ...

    @property
    def version(self) -> int: ...


class LiveTables:
    """`clients` gives the open connections."""

    def __init__(self, node: NodeServices, clients: Callable[[], Sequence[Client]]) -> None:
        self._node = node
        self._clients = clients

    def tables(self) -> list[VirtualTable]:
        node = self._node
        return [
            view(
                "barriers",
                "kind text; operation_id bigint; node_id int; reason text; last_seen_epoch bigint; "
                "since timestamp",
                ("kind",),
                ("operation_id", "node_id", "reason"),
                AskedRows(lambda: leaders_rows(self._node, BARRIERS, barrier_rows)),
                "Whom topology operations and changes of the voters wait for, as the metadata leader sees it",
            ),
            view(
                "sessions",
                "id text; operation_id int; stage text; opened_epoch bigint",
                ("id",),
                (),
                self._sessions,
                "Sessions under which streaming and cleanup may have effects",
            ),
            *(
                view(one.name, one.columns, one.partition, one.clustering, partial(one.rows, node), one.text)
                for one in (*HINT_VIEWS, *CONDITION_VIEWS, *LOAD_VIEWS, *READ_SESSION_VIEWS, *TRACKING_VIEWS)
            ),
            view(
                "streams",
                COLUMNS,
                PARTITION,
                CLUSTERING,
                lambda: stream_rows(self._node),
                "Range streams from and to this node that are under way",
            ),
            view(
                "repairs",
                REPAIRS,
                ("id",),
                ("keyspace_name",),
                AskedRows(lambda: drivers_rows(self._node)),
                "Repairs that run, and that ended lately",
            ),
            view(
                "repaired_ranges",
                REPAIRED,
                ("keyspace_name",),
                ("table_name", "start_token"),
                lambda: repaired_rows(self._node),
                "When ranges of tables were last made equal on all their replicas",
            ),
            view(
                "cms_members",
                "node_id int; host_id uuid; address inet; dc text; rack text; role text; is_leader boolean; "
                "is_alive boolean; acknowledged_epoch bigint",
                ("node_id",),
                (),
                self._cms,
                "Voters of the metadata group, and nodes that are being added to it",
            ),
            view("settings", "name text; value text", ("name",), (), self._settings, "This node's settings"),
            view(
                "clients",
                "address inet; port int; connection_stage text; driver_name text; driver_version text; "
                "keyspace_name text; protocol_version int; request_count bigint; username text",
                ("address",),
                ("port",),
                self._client_rows,
                "CQL connections of this node",
            ),
        ]

    def _sessions(self) -> Iterator[VirtualRow]:
        for session in self._node.log.cluster.sessions:
            yield {
                "id": session.id,
                "operation_id": session.operation_id,
                "stage": session.stage.value,
                "opened_epoch": session.opened_epoch,
            }

    def _cms(self) -> Iterator[VirtualRow]:
        node = self._node
        for member in node.log.cluster.service.members:
            info = node.log.cluster.directory.by_id[member]
            yield {
                "node_id": member,
                "host_id": parse_uuid(info.host_id),
                "address": info.address,
                "dc": info.dc,
                "rack": info.rack,
                "role": "voting member" if member in node.log.cluster.voters else "learner",
                "is_leader": member == node.log.leader_id,
                "is_alive": node.membership.liveness.alive(member),
                "acknowledged_epoch": seen_epoch(node, member),
            }

    def _settings(self) -> Iterator[VirtualRow]:
        for section, keys in masked(msgspec.to_builtins(self._node.context.configuration)).items():
            for key, value in keys.items():
                text = ", ".join(map(str, value)) if isinstance(value, tuple | list) else str(value)
                yield {"name": f"{section}.{key}", "value": text}

    def _client_rows(self) -> Iterator[VirtualRow]:
        for client in self._clients():
            session = client.session
            yield {
                "address": client.peer[0],
                "port": client.peer[1],
                "connection_stage": "ready" if session is not None else "initial",
                "driver_name": client.options.get("DRIVER_NAME"),
                "driver_version": client.options.get("DRIVER_VERSION"),
                "keyspace_name": session.keyspace if session is not None else None,
                "protocol_version": client.version,
                "request_count": client.requests_served,
                "username": (session.user or "anonymous") if session is not None else None,
            }


def barrier_rows(node: NodeServices) -> Iterator[VirtualRow]:
    """Whom this node waits for, as the metadata leader."""
    for blocking in node.work.topology.blocking:
        yield {
            "kind": "operation",
            "operation_id": blocking.operation_id,
            "node_id": blocking.node,
            "reason": blocking.reason,
            "last_seen_epoch": seen_epoch(node, blocking.node),
            "since": blocking.since_us // 1000,
        }
    blocked, change = node.work.service.blocked, node.log.cluster.service.change
    if blocked is not None:
        yield {
            "kind": "voters",
            "operation_id": change.id if change is not None else 0,
            "node_id": blocked.node,
            "reason": blocked.reason,
            "last_seen_epoch": seen_epoch(node, blocked.node) if blocked.node else None,
            "since": blocked.since_us // 1000,
        }


def seen_epoch(node: NodeServices, other: int) -> int:
    """The newest epoch that a node is known to have applied."""
    return (
        node.log.cluster.epoch if other == node.context.own_id() else node.work.topology.acknowledged(other)
    )


def view(
    name: str,
    columns: str,
    partition: Sequence[str],
    clustering: Sequence[str],
    rows: Callable[[], Iterator[VirtualRow]] | KeyedRows | AskedRows,
    comment: str,
) -> VirtualTable:
    return define("system_views", name, columns, partition, clustering, rows, comment=comment)


Document = dict[str, Any]

PATH = "/v1/gossip"
_PHI_DIGITS = 2


def gossip(node: NodeServices, wanted: str | None = None) -> Document:
    """Every node that has not left, or the one with this id, host id or address. ConfigurationError."""
    rows = [_document(node, info) for info in _present(node)]
    if wanted is not None:
        rows = [row for row in rows if wanted in (str(row["node"]), row["host_id"], row["address"])]
        if not rows:
            raise ConfigurationError(f"there is no node {wanted}", hint="`lockstep status` lists them")
    return {
        "schema": "gossip/1",
        "asked": node.context.own_id(),
        "phi_threshold": node.context.configuration.gossip.phi_threshold,
        "rounds": node.membership.gossip.rounds,
        "nodes": rows,
    }


def _present(node: NodeServices) -> Iterator[NodeInfo]:
    return (info for info in node.log.cluster.directory.nodes if info.state is not NodeState.LEFT)


def _document(node: NodeServices, info: NodeInfo) -> Document:
    liveness, known = node.membership.liveness, node.membership.gossip.known(info.id)
    silent_s = liveness.silent_s(info.id)
    document: Document = {
        "node": info.id,
        "host_id": info.host_id,
        "address": info.address,
        "dc": info.dc,
        "rack": info.rack,
        "state": info.state.value,
        "tokens": len(info.tokens),
        "alive": liveness.alive(info.id),
        "excluded": info.id in node.log.cluster.excluded_by_node,
        "preferred": liveness.opinions.prefers(info.id),
        "phi": round(liveness.opinions.phi(info.id), _PHI_DIGITS),
        "silent_s": round(silent_s, 3) if silent_s is not None else None,
        "heard": known is not None,
    }
    if known is not None:
        told, now_us = known.state, node.context.runtime.clock.wall_us()
        document |= {
            "generation": known.version.generation,
            "version": known.version.version,
            "age_s": round(node.membership.gossip.age_s(known), 3),
            "ready": told.ready,
            "load_bytes": told.load_bytes if told.load_bytes >= 0 else None,
            "release": told.release,
            "epoch": told.epoch,
            "schema_version": told.schema_version.hex(),
            "streams": told.streams,
            "uptime_s": max(0, (now_us - told.started_us) // 1_000_000),
        }
    return document


class GossipTable:
    """`system_views.gossip_info`."""

    def __init__(self, node: NodeServices) -> None:
        self._node = node

    def table(self) -> VirtualTable:
        return view(
            "gossip_info",
            "node_id int; host_id uuid; address inet; state text; is_alive boolean; is_excluded boolean; "
            "is_preferred boolean; phi double; silent_s double; generation bigint; version bigint; "
            "age_s double; is_ready boolean; load_bytes bigint; release_version text; epoch bigint; "
            "schema_version text; streams int; uptime_s bigint",
            ("node_id",),
            (),
            KeyedRows(self._rows, self._row_of),
            "What each node says of itself, as gossip brought it here, and how strongly it is suspected",
        )

    def _rows(self) -> Iterator[VirtualRow]:
        return (self._row(info) for info in _present(self._node))

    def _row_of(self, node_id: Any, _all: Between) -> Iterator[VirtualRow]:
        info = self._node.log.cluster.directory.by_id.get(node_id)
        if info is not None and info.state is not NodeState.LEFT:
            yield self._row(info)

    def _row(self, info: NodeInfo) -> VirtualRow:
        document = _document(self._node, info)
        return {
            **document,
            "node_id": info.id,
            "host_id": parse_uuid(info.host_id),
            "is_alive": document["alive"],
            "is_excluded": document["excluded"],
            "is_preferred": document["preferred"],
            "is_ready": document.get("ready"),
            "release_version": document.get("release"),
        }


def gossip_samples(node: NodeServices) -> Iterator[Sample]:
    yield Sample("lockstep_gossip_rounds_total", node.membership.gossip.rounds)
    yield Sample("lockstep_gossip_messages_total", node.membership.gossip.sent)
    yield Sample("lockstep_gossip_failures_total", node.membership.gossip.failures)
    for info in _present(node):
        labels = (("node", str(info.id)), ("address", info.address))
        phi = round(node.membership.liveness.opinions.phi(info.id), _PHI_DIGITS)
        yield Sample("lockstep_gossip_phi", phi, labels)
