"""Counters in Prometheus text format, read from the node's parts when they are asked for.

Invariant: nothing is counted twice, and counting costs requests nothing but an addition. What a metric means
is in metric_table.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from lockstep.metadata.directory import NodeState
from lockstep.server.clock_metrics import clock_samples
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
    yield Sample("lockstep_node_ready_bool", node.ready)
    yield from condition_samples(node)
    yield from metadata_samples(node)
    for other in cluster.directory.nodes:
        if other.state is not NodeState.LEFT:
            labels = (("node", str(other.id)), ("address", other.address))
            alive = node.liveness.alive(other.id)
            yield Sample("lockstep_gossip_alive_bool", alive, labels)
            epoch = seen_epoch(node, other.id)
            yield Sample("lockstep_topology_acknowledged_epoch", epoch, labels)
    yield from clock_samples(node)
    yield from damage_samples(node)
    yield from gossip_samples(node)
    yield from stream_samples(node)
    yield from repair_samples(node)
    yield from purge_samples(node)
    yield from hint_samples(node)
    yield from conditional_samples(node)
    yield from view_samples(node)
    yield Sample("lockstep_topology_operations_running", len(cluster.operations))
    yield Sample("lockstep_topology_barriers_relaxed_total", node.topology.relaxed_count)
    yield Sample("lockstep_replication_writes_in_flight", writes)
    yield Sample("lockstep_replication_reads_in_flight", reads)
    yield from _requests_and_epochs(node)
    yield Sample("lockstep_server_connections_open", len(cql.connections))
    yield Sample("lockstep_server_connections_refused_total", cql.connections_refused)
    yield Sample("lockstep_server_requests_total", cql.requests_served + open_requests)
    yield Sample("lockstep_server_requests_in_flight", cql.load.requests)
    yield Sample("lockstep_server_bytes_in_flight", cql.load.bytes)
    yield Sample("lockstep_server_overloaded_total", cql.load.refused + cql.turns.shed)
    yield Sample("lockstep_server_admission_limit_requests", cql.turns.admission.limit)
    yield Sample("lockstep_server_requests_shed_total", cql.turns.shed)
    yield from _owed_samples(cql.responses)
    yield from cql.latencies.samples()
    yield Sample("lockstep_server_faults_total", cql.faults)
    yield Sample("lockstep_server_prepared_statements", len(cql.executor.statements))


def _owed_samples(responses: NodeResponses) -> Iterator[Sample]:
    """Responses that clients do not take."""
    yield Sample("lockstep_server_response_bytes_owed", responses.owed)
    yield Sample("lockstep_server_responses_refused_total", responses.refused)
    for why, count in (("slow", responses.closed_slow), ("stalled", responses.closed_stalled)):
        yield Sample("lockstep_server_clients_closed_total", count, (("why", why),))


def _requests_and_epochs(node: Node) -> Iterator[Sample]:
    """How requests fared where nodes were at different epochs."""
    refusals = node.replica.refusals
    for reason, count in refusals.counts.items():
        yield Sample("lockstep_replication_refusals_total", count, (("reason", reason),))
    yield Sample("lockstep_replication_catch_up_waits_total", refusals.waits)
    yield Sample("lockstep_replication_requests_expired_total", node.internode.expired)
    yield from _extra_requests(node)
    for kind, replans, catch_ups in zip(
        ("write", "read"), node.coordinator.replans(), node.coordinator.catch_ups(), strict=True
    ):
        yield Sample("lockstep_replication_replans_total", replans, (("kind", kind),))
        yield Sample("lockstep_replication_catch_ups_total", catch_ups, (("kind", kind),))


def _extra_requests(node: Node) -> Iterator[Sample]:
    """Requests to more replicas than a level needs, and answers that differed."""
    counters = node.coordinator.extra_requests()
    yield Sample("lockstep_replication_speculative_retries_total", counters.asked)
    yield Sample("lockstep_replication_speculative_failed_retries_total", counters.missed)
    yield Sample("lockstep_replication_speculative_insufficient_replicas_total", counters.insufficient)
    yield Sample("lockstep_replication_read_repair_additional_writes_total", counters.repairs_extended)
    yield Sample("lockstep_replication_digest_mismatches_total", counters.digest_mismatches)


def exposition(node: Node, cql: CqlServer) -> bytes:
    """All samples as Prometheus text."""
    return text_of(samples(node, cql))
