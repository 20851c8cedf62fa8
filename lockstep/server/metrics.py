"""Counters in Prometheus text format, read from the node's parts when they are asked for.

Invariant: names are `lockstep_<room>_<thing>_<unit>`; nothing is counted twice, and counting costs requests
nothing but an addition. Four gauges keep the names under which recovery tools look for them, `cmg.available`,
`cmg.availablePeers`, `metastorage.available` and `metastorage.availablePeers`, with underscores for dots.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from lockstep.metadata.directory import NodeState
from lockstep.server.conditional_metrics import conditional_samples
from lockstep.server.conditions import condition_samples
from lockstep.server.damage_metrics import damage_samples
from lockstep.server.gossip_view import gossip_samples
from lockstep.server.hint_views import hint_samples
from lockstep.server.live_views import seen_epoch
from lockstep.server.metadata_metrics import metadata_samples
from lockstep.server.repair_views import purge_samples, repair_samples
from lockstep.server.responses_owed import NodeResponses
from lockstep.server.samples import Sample, text_of
from lockstep.server.stream_views import stream_samples
from lockstep.server.view_build_rows import view_samples

if TYPE_CHECKING:
    from lockstep.node.node import Node
    from lockstep.server.cql_server import CqlServer

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


def samples(node: Node, cql: CqlServer) -> Iterator[Sample]:
    cluster = node.cluster
    writes, reads = node.coordinator.in_flight()
    open_requests = sum(connection.requests_served for connection in cql.connections)
    yield Sample("lockstep_node_ready_bool", "Whether the node serves", "gauge", node.ready)
    yield from condition_samples(node)
    yield from metadata_samples(node)
    for other in cluster.directory.nodes:
        if other.state is not NodeState.LEFT:
            labels = (("node", str(other.id)), ("address", other.address))
            alive = node.liveness.alive(other.id)
            yield Sample("lockstep_gossip_alive_bool", "Whether a node seems alive", "gauge", alive, labels)
            epoch = seen_epoch(node, other.id)
            yield Sample(
                "lockstep_topology_acknowledged_epoch", "Newest epoch heard of a node", "gauge", epoch, labels
            )
    yield from damage_samples(node)
    yield from gossip_samples(node)
    yield from stream_samples(node)
    yield from repair_samples(node)
    yield from purge_samples(node)
    yield from hint_samples(node)
    yield from conditional_samples(node)
    yield from view_samples(node)
    yield Sample(
        "lockstep_topology_operations_running", "Topology operations", "gauge", len(cluster.operations)
    )
    yield Sample(
        "lockstep_topology_barriers_relaxed_total",
        "Barriers that this node, as the leader, let go of quorums within data centres",
        "counter",
        node.topology.relaxed_count,
    )
    yield Sample("lockstep_replication_writes_in_flight", "Writes coordinated now", "gauge", writes)
    yield Sample("lockstep_replication_reads_in_flight", "Reads coordinated now", "gauge", reads)
    yield from _requests_and_epochs(node)
    yield Sample("lockstep_server_connections_open", "CQL connections", "gauge", len(cql.connections))
    yield Sample(
        "lockstep_server_connections_refused_total",
        "CQL connections refused",
        "counter",
        cql.connections_refused,
    )
    yield Sample(
        "lockstep_server_requests_total",
        "CQL requests with a task or a write answered",
        "counter",
        cql.requests_served + open_requests,
    )
    yield Sample(
        "lockstep_server_requests_in_flight", "CQL requests not answered yet", "gauge", cql.load.requests
    )
    yield Sample("lockstep_server_bytes_in_flight", "Bytes of those requests", "gauge", cql.load.bytes)
    yield Sample(
        "lockstep_server_overloaded_total",
        "CQL requests refused because too much was in flight",
        "counter",
        cql.load.refused,
    )
    yield from _owed_samples(cql.responses)
    yield Sample("lockstep_server_faults_total", "Defects answered as server errors", "counter", cql.faults)
    yield Sample(
        "lockstep_server_prepared_statements",
        "Prepared statements kept",
        "gauge",
        len(cql.executor.statements),
    )


def _owed_samples(responses: NodeResponses) -> Iterator[Sample]:
    """Responses that clients do not take."""
    yield Sample(
        "lockstep_server_response_bytes_owed",
        "Bytes of responses to CQL clients that do not read them",
        "gauge",
        responses.owed,
    )
    yield Sample(
        "lockstep_server_responses_refused_total",
        "Responses replaced by an error because their clients do not read",
        "counter",
        responses.refused,
    )
    for why, count in (("slow", responses.closed_slow), ("stalled", responses.closed_stalled)):
        yield Sample(
            "lockstep_server_clients_closed_total",
            "CQL connections closed because their clients do not read",
            "counter",
            count,
            (("why", why),),
        )


def _requests_and_epochs(node: Node) -> Iterator[Sample]:
    """How requests fared where nodes were at different epochs."""
    refusals = node.replica.refusals
    for reason, count in refusals.counts.items():
        yield Sample(
            "lockstep_replication_refusals_total",
            "Requests of coordinators refused here, by reason",
            "counter",
            count,
            (("reason", reason),),
        )
    yield Sample(
        "lockstep_replication_catch_up_waits_total",
        "Requests that waited here for a change that matters",
        "counter",
        refusals.waits,
    )
    yield from _extra_requests(node)
    for name, words, counts in (
        (
            "replans",
            "Requests planned again because something that matters changed",
            node.coordinator.replans(),
        ),
        ("catch_ups", "Requests that learned of a newer epoch by a refusal", node.coordinator.catch_ups()),
    ):
        for kind, count in zip(("write", "read"), counts, strict=True):
            yield Sample(f"lockstep_replication_{name}_total", words, "counter", count, (("kind", kind),))


def _extra_requests(node: Node) -> Iterator[Sample]:
    """Requests to more replicas than a level needs, and answers that differed."""
    counters = node.coordinator.extra_requests()
    for name, words, count in (
        ("speculative_retries", "Reads that asked one more replica since others were slow", counters.asked),
        ("speculative_failed_retries", "Reads that timed out although they had", counters.missed),
        (
            "speculative_insufficient_replicas",
            "Reads that were slow and had no more replica to ask",
            counters.insufficient,
        ),
        (
            "read_repair_additional_writes",
            "Read repairs sent to more replicas since others were slow",
            counters.repairs_extended,
        ),
        (
            "digest_mismatches",
            "Reads of which a replica's digest was not that of the answer",
            counters.digest_mismatches,
        ),
    ):
        yield Sample(f"lockstep_replication_{name}_total", words, "counter", count)


def exposition(node: Node, cql: CqlServer) -> bytes:
    """All samples as Prometheus text."""
    return text_of(samples(node, cql))
