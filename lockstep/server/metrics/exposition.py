"""Counters in Prometheus text format, read from the node's parts when they are asked for.

Invariant: nothing is counted twice, and counting costs requests nothing but an addition. What a metric means
is in metric_table.

Samples of clocks: of this node's, and of what it knows of the others'.

Invariant: what is shown is what conditions and warnings go by.

Conditional writes and serial reads of this node as metrics.

Invariant: read from what the requests themselves count; nothing is kept here.

Samples of damaged table files, and of what a node lacks since it lost some.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from lockstep.coordination.conditional_counts import BOUNDS_BEATEN, BOUNDS_S, ConditionalCounts
from lockstep.metadata.directory import NodeState
from lockstep.node.services import NodeServices
from lockstep.server.cql.responses_owed import NodeResponses
from lockstep.server.metrics.metadata_metrics import metadata_samples
from lockstep.server.metrics.samples import Sample, histogram, text_of
from lockstep.server.reports.conditions import condition_samples
from lockstep.server.views.gossip_view import gossip_samples
from lockstep.server.views.hint_views import hint_samples
from lockstep.server.views.live_views import seen_epoch
from lockstep.server.views.repair_views import purge_samples, repair_samples
from lockstep.server.views.stream_views import stream_samples
from lockstep.server.views.view_build_rows import view_samples

if TYPE_CHECKING:
    from lockstep.server.cql.cql_server import CqlServer


def damage_samples(node: NodeServices) -> Iterator[Sample]:
    damaged = node.data.store.damaged
    yield Sample("lockstep_storage_damaged_files", len(damaged.known))
    yield Sample("lockstep_storage_damage_met_total", damaged.count)
    yield Sample("lockstep_storage_lacking_stretches", len(node.data.lacking.current))


def conditional_samples(node: NodeServices) -> Iterator[Sample]:
    conditionals = node.data.conditionals
    for kind, counts in (("write", conditionals.writes_ended), ("read", conditionals.reads_ended)):
        yield from _samples(kind, counts)
    yield Sample("lockstep_conditional_replans_total", conditionals.replans)


def _samples(kind: str, counts: ConditionalCounts) -> Iterator[Sample]:
    labels = (("kind", kind),)
    for outcome, count in counts.outcomes.items():
        yield Sample("lockstep_conditional_requests_total", count, (*labels, ("outcome", outcome)))
    yield Sample("lockstep_conditional_unfinished_total", counts.finished, labels)
    yield from histogram(
        "lockstep_conditional_duration_seconds", (BOUNDS_S, counts.took, counts.took_s), labels
    )
    yield from histogram(
        "lockstep_conditional_contentions", (BOUNDS_BEATEN, counts.beaten, counts.beaten_total), labels
    )


def clock_samples(node: NodeServices) -> Iterator[Sample]:
    yield Sample("lockstep_clock_skew_seconds", node.log.clocks.skew().offset_us / 1e6)
    yield Sample("lockstep_clock_stamps_ahead_seconds", node.log.stamps.ahead_us / 1e6)
    for other, offset in node.log.clocks.offsets().items():
        labels = (("node", str(other)),)
        yield Sample("lockstep_clock_offset_seconds", offset.offset_us / 1e6, labels)
        yield Sample("lockstep_clock_offset_error_seconds", offset.error_us / 1e6, labels)


CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


def samples(node: NodeServices, cql: CqlServer) -> Iterator[Sample]:
    cluster = node.log.cluster
    writes, reads = node.data.coordinator.in_flight()
    open_requests = sum(connection.requests_served for connection in cql.connections)
    yield Sample("lockstep_node_ready_bool", node.life.ready)
    yield from condition_samples(node)
    yield from metadata_samples(node)
    for other in cluster.directory.nodes:
        if other.state is not NodeState.LEFT:
            labels = (("node", str(other.id)), ("address", other.address))
            alive = node.membership.liveness.alive(other.id)
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
    yield Sample("lockstep_topology_barriers_relaxed_total", node.work.topology.relaxed_count)
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


def _requests_and_epochs(node: NodeServices) -> Iterator[Sample]:
    """How requests fared where nodes were at different epochs."""
    refusals = node.data.replica.refusals
    for reason, count in refusals.counts.items():
        yield Sample("lockstep_replication_refusals_total", count, (("reason", reason),))
    yield Sample("lockstep_replication_catch_up_waits_total", refusals.waits)
    yield Sample("lockstep_replication_requests_expired_total", node.context.internode.expired)
    yield from _extra_requests(node)
    for kind, replans, catch_ups in zip(
        ("write", "read"), node.data.coordinator.replans(), node.data.coordinator.catch_ups(), strict=True
    ):
        yield Sample("lockstep_replication_replans_total", replans, (("kind", kind),))
        yield Sample("lockstep_replication_catch_ups_total", catch_ups, (("kind", kind),))


def _extra_requests(node: NodeServices) -> Iterator[Sample]:
    """Requests to more replicas than a level needs, and answers that differed."""
    counters = node.data.coordinator.extra_requests()
    yield Sample("lockstep_replication_speculative_retries_total", counters.asked)
    yield Sample("lockstep_replication_speculative_failed_retries_total", counters.missed)
    yield Sample("lockstep_replication_speculative_insufficient_replicas_total", counters.insufficient)
    yield Sample("lockstep_replication_read_repair_additional_writes_total", counters.repairs_extended)
    yield Sample("lockstep_replication_digest_mismatches_total", counters.digest_mismatches)


def exposition(node: NodeServices, cql: CqlServer) -> bytes:
    """All samples as Prometheus text."""
    return text_of(samples(node, cql))
