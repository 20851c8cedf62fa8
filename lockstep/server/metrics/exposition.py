"""Counters in Prometheus text format, read from the node's parts when they are asked for.

Samples of damaged table files, and of what a node lacks since it lost some.

Invariant: nothing is counted twice, and counting costs requests nothing but an addition. What a metric means
is in metric_table. What is shown is what conditions and warnings go by. Read from what the requests
themselves count; nothing is kept here. As in server.metrics, names are `lockstep_<room>_<thing>_<unit>`; a
scrape asks nobody and reads no file; what is told of other nodes is what this node has heard.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from lockstep.coordination.ballot_counts import BOUNDS_BEATEN, BOUNDS_S, ConditionalCounts
from lockstep.metadata.directory import NodeState
from lockstep.node.log.catch_up import WAIT_BOUNDS_MS
from lockstep.node.log.raft_driver import RaftDriver
from lockstep.node.log.submission import BOUNDS_S as COMMIT_BOUNDS_S
from lockstep.node.services import NodeServices
from lockstep.server.cql.backpressure import NodeResponses
from lockstep.server.metrics.metric_table import Sample, histogram, text_of
from lockstep.server.reports.leader_views import GROUPS
from lockstep.server.views.live_views import condition_samples, gossip_samples, seen_epoch
from lockstep.server.views.load_views import load_samples
from lockstep.server.views.read_session_views import read_session_samples
from lockstep.server.views.tracking_views import tracking_samples
from lockstep.server.views.work_views import (
    hint_samples,
    purge_samples,
    repair_samples,
    stream_samples,
    view_samples,
)

if TYPE_CHECKING:
    from lockstep.server.cql.cql_server import CqlServer


_COMMIT = "lockstep_metadata_commit_duration_seconds"


def metadata_samples(node: NodeServices) -> Iterator[Sample]:
    cluster = node.log.cluster
    yield Sample("lockstep_metadata_epoch_entries", cluster.epoch)
    yield Sample("lockstep_metadata_leader_bool", node.log.is_leader)
    broken = node.log.state.broken is not None
    yield Sample("lockstep_metadata_stopped_bool", broken)
    frozen = bool(cluster.service.frozen)
    yield Sample("lockstep_metadata_frozen_bool", frozen)
    yield Sample("lockstep_metadata_read_only_bool", bool(node.membership.validator.missing))
    yield from _lags(node)
    yield from _log_and_snapshots(node)
    yield from _commits(node)
    yield from _catch_up(node)
    yield from _announcements(node)
    yield from _groups(node)
    yield from _ring(node)


def _ring(node: NodeServices) -> Iterator[Sample]:
    """Of a cluster that runs on the ring without a log."""
    ring = node.log.ring
    if not node.context.is_on_ring:
        return
    yield Sample("lockstep_ring_blocked_bool", bool(ring.blocked()))
    yield Sample("lockstep_ring_waiting_changes", ring.processor.waiting)
    for outcome, count in ring.ended_counts.items():
        yield Sample("lockstep_ring_proposals_total", count, (("outcome", outcome),))
    yield Sample("lockstep_ring_alarms_total", ring.alarm_count)
    yield Sample("lockstep_ring_mail_lost_total", ring.lost_count)


def _lags(node: NodeServices) -> Iterator[Sample]:
    newest = max(node.log.cluster.epoch, node.log.catch_up.newest_heard)
    for other in node.log.cluster.directory.nodes:
        if other.state is not NodeState.LEFT:
            labels = (("node", str(other.id)), ("address", other.address))
            behind = max(0, newest - seen_epoch(node, other.id))
            yield Sample("lockstep_metadata_lag_epochs", behind, labels)


def _log_and_snapshots(node: NodeServices) -> Iterator[Sample]:
    state, service = node.log.state, node.log.cluster.service
    yield Sample("lockstep_metadata_oldest_epoch", state.first_epoch)
    since = state.store.log_bytes if state.epoch > service.snapshot_epoch else 0
    yield Sample("lockstep_metadata_log_bytes", since)
    latest = state.latest_snapshot()
    if latest is not None:
        age_s = max(0.0, (node.context.runtime.clock.wall_us() - latest.entry.commit_time_us) / 1e6)
        yield Sample("lockstep_metadata_snapshot_epoch", latest.epoch)
        yield Sample("lockstep_metadata_snapshot_age_seconds", age_s)
        yield Sample("lockstep_metadata_snapshot_bytes", latest.size_bytes)


def _commits(node: NodeServices) -> Iterator[Sample]:
    for outcome, times in node.log.submitter.times.by_outcome.items():
        yield from histogram(_COMMIT, (COMMIT_BOUNDS_S, times.counts, times.total_s), (("outcome", outcome),))


def _catch_up(node: NodeServices) -> Iterator[Sample]:
    catch_up = node.log.catch_up
    for way, entries, size, snapshots in (
        ("fetched", catch_up.entries_fetched, catch_up.bytes_fetched, catch_up.snapshots_fetched),
        ("served", catch_up.entries_served, catch_up.bytes_served, catch_up.snapshots_served),
    ):
        label = (("way", way),)
        yield Sample("lockstep_metadata_catch_up_entries_total", entries, label)
        yield Sample("lockstep_metadata_catch_up_bytes_total", size, label)
        yield Sample("lockstep_metadata_catch_up_snapshots_total", snapshots, label)
    yield Sample("lockstep_metadata_gaps_refused_total", catch_up.gaps_refused)
    yield Sample("lockstep_metadata_forks_total", node.log.histories.forks_seen)
    yield from histogram(
        "schemaSync_waits", (WAIT_BOUNDS_MS, catch_up.waits.counts, catch_up.waits.total_ms), ()
    )


def _announcements(node: NodeServices) -> Iterator[Sample]:
    for origin, count in (("own", node.log.announcer.sent), ("forwarded", node.log.announcer.forwarded)):
        yield Sample("lockstep_gossip_announcements_total", count, (("origin", origin),))


def _groups(node: NodeServices) -> Iterator[Sample]:
    """Both groups, as this node takes part in them; voters as it knows them. Without a log there are none."""
    if node.context.is_on_ring:
        return
    drivers: dict[str, RaftDriver | None] = {"metastorage": node.log.driver, "cmg": None}
    if node.membership.management.group is not None:
        drivers["cmg"] = node.membership.management.group.driver
    for name, group in GROUPS.items():
        label = (("group", name),)
        peers, (voters, outgoing) = (
            node.membership.groups.peers(group),
            node.membership.groups.configuration(group),
        )
        members = len({*voters, *outgoing})
        lost = sum(not node.membership.liveness.alive(voter) for voter in sorted({*voters, *outgoing}))
        yield Sample("lockstep_consensus_voters_count", members, label)
        yield Sample("lockstep_consensus_voters_unreachable_count", lost, label)
        yield Sample(f"{name}_available", peers.available)
        yield Sample(f"{name}_availablePeers", peers.count)
        driver = drivers[name]
        if driver is not None:
            status = driver.raft.status()
            yield Sample("lockstep_consensus_term_number", status.term, label)
            yield Sample("lockstep_consensus_commit_index", status.commit_index, label)
            yield Sample("lockstep_consensus_leader_bool", driver.is_leader, label)


def damage_samples(node: NodeServices) -> Iterator[Sample]:
    damaged = node.data.store.damaged
    yield Sample("lockstep_storage_damaged_files", len(damaged.known))
    yield Sample("lockstep_storage_damage_met_total", damaged.count)
    yield Sample("lockstep_storage_lacking_stretches", len(node.data.lacking.current))


def conditional_samples(node: NodeServices) -> Iterator[Sample]:
    conditionals = node.data.conditionals
    for kind, counts in (("write", conditionals.writes_ended), ("read", conditionals.reads_ended)):
        yield from _samples(kind, counts)
    yield Sample("lockstep_conditional_replans_total", conditionals.shared.replans)


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
    open_requests = sum(connection.requests_served for connection in cql.clients.connections)
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
    yield from load_samples(node)
    yield from conditional_samples(node)
    yield from view_samples(node)
    yield from read_session_samples(node)
    yield from tracking_samples(node)
    yield Sample("lockstep_topology_operations_running", len(cluster.operations))
    yield Sample("lockstep_topology_barriers_relaxed_total", node.work.topology.relaxed_count)
    yield Sample("lockstep_replication_writes_in_flight", writes)
    yield Sample("lockstep_replication_reads_in_flight", reads)
    yield from _requests_and_epochs(node)
    yield Sample("lockstep_server_connections_open", len(cql.clients.connections))
    yield Sample("lockstep_server_connections_refused_total", cql.clients.connections_refused)
    yield Sample("lockstep_server_requests_total", cql.clients.requests_served + open_requests)
    yield Sample("lockstep_server_requests_in_flight", cql.clients.load.requests)
    yield Sample("lockstep_server_bytes_in_flight", cql.clients.load.bytes)
    yield Sample("lockstep_server_overloaded_total", cql.clients.load.refused + cql.clients.turns.shed)
    yield Sample("lockstep_server_admission_limit_requests", cql.clients.turns.admission.limit)
    yield Sample("lockstep_server_requests_shed_total", cql.clients.turns.shed)
    yield from _owed_samples(cql.clients.responses)
    yield from cql.clients.latencies.samples()
    yield Sample("lockstep_server_faults_total", cql.clients.faults)
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
    yield Sample("lockstep_replication_requests_expired_total", node.context.internode.own.expired)
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
