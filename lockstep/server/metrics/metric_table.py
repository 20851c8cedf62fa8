"""The metrics of a node: name, type, labels and meaning of each; their samples, and the Prometheus text of
many.

Invariant: nothing is exposed that has no row here, and a sample has the labels that its row names; names are
`lockstep_<room>_<thing>_<unit>`. All samples of a name stand together under one HELP and one TYPE line,
whatever order they come in. Four gauges keep the names under which recovery tools look for them,
`cmg.available`, `cmg.availablePeers`, `metastorage.available` and `metastorage.availablePeers`, with
underscores for dots.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Final

import msgspec

COUNTER: Final = "counter"
GAUGE: Final = "gauge"
HISTOGRAM: Final = "histogram"
UNITS: Final = ("seconds", "bytes", "epochs", "epoch", "bool", "ratio")


class Metric(msgspec.Struct, frozen=True):
    """`kind` is counter, gauge or histogram; `labels` are their names, in the order of their values."""

    name: str
    kind: str
    labels: tuple[str, ...]
    meaning: str

    @property
    def unit(self) -> str:
        """Its name says it last; things are counted where it does not."""
        return next(
            (unit for unit in UNITS if self.name.removesuffix("_total").endswith(f"_{unit}")), "count"
        )


_TABLE: Final = (
    Metric("cmg_available", GAUGE, (), "1 while a majority of the management group is available"),
    Metric("cmg_availablePeers", GAUGE, (), "Available voters of the management group"),
    Metric("lockstep_batches_kept", GAUGE, (), "Logged batches kept for coordinators"),
    Metric("lockstep_batches_kept_bytes", GAUGE, (), "Bytes of the logged batches kept"),
    Metric("lockstep_batches_replay_failures_total", COUNTER, (), "Replays to be tried again"),
    Metric(
        "lockstep_batches_replayed_total",
        COUNTER,
        (),
        "Logged batches replayed because their coordinator did not say that they were done",
    ),
    Metric(
        "lockstep_clock_offset_error_seconds",
        GAUGE,
        ("node",),
        "By how much that may be wrong: half of the shortest way there and back",
    ),
    Metric("lockstep_clock_offset_seconds", GAUGE, ("node",), "Another node's clock less this node's"),
    Metric(
        "lockstep_clock_skew_seconds",
        GAUGE,
        (),
        "How far this node's clock is ahead of the middle of all clocks",
    ),
    Metric(
        "lockstep_clock_stamps_ahead_seconds",
        GAUGE,
        (),
        "How far this node's timestamps are ahead of its clock, which was set back",
    ),
    Metric(
        "lockstep_cluster_level",
        GAUGE,
        (),
        "0 healthy, 1 degraded, 2 unavailable, as this node sees the cluster",
    ),
    Metric(
        "lockstep_conditional_contentions",
        HISTOGRAM,
        ("kind",),
        "How often others were promised a later ballot during a conditional request",
    ),
    Metric(
        "lockstep_conditional_duration_seconds",
        HISTOGRAM,
        ("kind",),
        "How long conditional writes and serial reads took",
    ),
    Metric(
        "lockstep_conditional_replans_total",
        COUNTER,
        (),
        "Rounds of ballots planned again because something that matters changed",
    ),
    Metric(
        "lockstep_conditional_requests_total",
        COUNTER,
        ("kind", "outcome"),
        "Conditional writes and serial reads, by how they ended",
    ),
    Metric(
        "lockstep_conditional_unfinished_total",
        COUNTER,
        ("kind",),
        "Proposals of others that were in progress, and were finished first",
    ),
    Metric("lockstep_consensus_commit_index", GAUGE, ("group",), "Raft commit index"),
    Metric("lockstep_consensus_leader_bool", GAUGE, ("group",), "Whether this node leads the group"),
    Metric("lockstep_consensus_term_number", GAUGE, ("group",), "Raft term"),
    Metric("lockstep_consensus_voters_count", GAUGE, ("group",), "Voters of a group"),
    Metric(
        "lockstep_consensus_voters_unreachable_count",
        GAUGE,
        ("group",),
        "Voters of a group that seem down here",
    ),
    Metric("lockstep_gossip_alive_bool", GAUGE, ("node", "address"), "Whether a node seems alive"),
    Metric(
        "lockstep_gossip_announcements_total",
        COUNTER,
        ("origin",),
        "Messages that tell of a new epoch, of epochs made here as the leader (own) or elsewhere",
    ),
    Metric("lockstep_gossip_failures_total", COUNTER, (), "Exchanges without an answer"),
    Metric("lockstep_gossip_messages_total", COUNTER, (), "Gossip messages sent"),
    Metric("lockstep_gossip_phi", GAUGE, ("node", "address"), "How strongly a node is suspected"),
    Metric("lockstep_gossip_rounds_total", COUNTER, (), "Rounds of gossip begun"),
    Metric("lockstep_hints_delivered_total", COUNTER, (), "Hints brought to their nodes"),
    Metric(
        "lockstep_hints_dropped_total", COUNTER, ("reason",), "Hints that were not kept, or were given up"
    ),
    Metric("lockstep_hints_failed_total", COUNTER, (), "Attempts to bring hints that failed"),
    Metric("lockstep_hints_left_total", COUNTER, (), "Hints kept since the start"),
    Metric("lockstep_hints_pending", GAUGE, ("node",), "Hints kept for a node"),
    Metric("lockstep_hints_pending_bytes", GAUGE, ("node",), "Bytes of the hints kept for a node"),
    Metric("lockstep_load_files_damaged_total", COUNTER, (), "Files of bulk loads that were damaged"),
    Metric("lockstep_load_files_staged_total", COUNTER, (), "Files of bulk loads held and verified"),
    Metric("lockstep_load_staged_bytes_total", COUNTER, (), "Bytes of such files"),
    Metric("lockstep_loads_lacking_total", COUNTER, (), "Committed loads of which this node had no files"),
    Metric("lockstep_loads_oldest_running_seconds", GAUGE, (), "Age of the oldest bulk load that runs"),
    Metric("lockstep_loads_running", GAUGE, (), "Bulk loads that have begun and not ended"),
    Metric("lockstep_loads_staged_bytes", GAUGE, (), "Bytes held now of bulk loads that run"),
    Metric("lockstep_loads_taken_in_total", COUNTER, (), "Committed loads taken in"),
    Metric(
        "lockstep_metadata_catch_up_bytes_total",
        COUNTER,
        ("way",),
        "Entries and snapshots fetched and given, in bytes",
    ),
    Metric(
        "lockstep_metadata_catch_up_entries_total",
        COUNTER,
        ("way",),
        "Log entries fetched from peers and given to them",
    ),
    Metric(
        "lockstep_metadata_catch_up_snapshots_total",
        COUNTER,
        ("way",),
        "Snapshots fetched and given as a whole",
    ),
    Metric(
        "lockstep_metadata_commit_duration_seconds",
        HISTOGRAM,
        ("outcome",),
        "How long metadata changes submitted at this node took, by how they ended",
    ),
    Metric("lockstep_metadata_epoch_entries", GAUGE, (), "Entries of the metadata log applied here"),
    Metric(
        "lockstep_metadata_forks_total",
        COUNTER,
        (),
        "Contradictions between a peer's history and this node's",
    ),
    Metric("lockstep_metadata_frozen_bool", GAUGE, (), "1 while changes are refused"),
    Metric(
        "lockstep_metadata_gaps_refused_total", COUNTER, (), "Answers of peers that would have left a gap"
    ),
    Metric(
        "lockstep_metadata_lag_epochs",
        GAUGE,
        ("node", "address"),
        "Epochs that a node is behind the newest one heard of here",
    ),
    Metric("lockstep_metadata_leader_bool", GAUGE, (), "Whether this node leads the log"),
    Metric("lockstep_metadata_log_bytes", GAUGE, (), "Metadata log on disk since the last snapshot"),
    Metric("lockstep_metadata_oldest_epoch", GAUGE, (), "First epoch whose entry is kept here"),
    Metric(
        "lockstep_metadata_snapshot_age_seconds", GAUGE, (), "Since the entry of the newest snapshot here"
    ),
    Metric("lockstep_metadata_snapshot_bytes", GAUGE, (), "Size of the newest snapshot here"),
    Metric("lockstep_metadata_snapshot_epoch", GAUGE, (), "Newest snapshot here"),
    Metric("lockstep_metadata_stopped_bool", GAUGE, (), "1 when an entry cannot be applied"),
    Metric(
        "lockstep_node_condition",
        GAUGE,
        ("code", "subject"),
        "What is wrong with this node: 1 degrades the cluster, 2 keeps this node from serving",
    ),
    Metric("lockstep_node_ready_bool", GAUGE, (), "Whether the node serves"),
    Metric(
        "lockstep_repair_bytes_sent_total",
        COUNTER,
        (),
        "Bytes of the changes sent to replicas that lacked them",
    ),
    Metric("lockstep_repair_changes_sent_total", COUNTER, (), "Changes sent to replicas that lacked them"),
    Metric("lockstep_repair_changes_taken_total", COUNTER, (), "Changes that this node lacked"),
    Metric("lockstep_repair_leaves_compared_total", COUNTER, (), "Leaves of trees that this node compared"),
    Metric("lockstep_repair_leaves_different_total", COUNTER, (), "Leaves that were not the same everywhere"),
    Metric("lockstep_repair_running", GAUGE, (), "Repairs that this node drives"),
    Metric("lockstep_repair_trees_built_total", COUNTER, (), "Trees of what this node holds"),
    Metric(
        "lockstep_replication_catch_up_waits_total",
        COUNTER,
        (),
        "Requests that waited here for a change that matters",
    ),
    Metric(
        "lockstep_replication_catch_ups_total",
        COUNTER,
        ("kind",),
        "Requests that learned of a newer epoch by a refusal",
    ),
    Metric(
        "lockstep_replication_digest_mismatches_total",
        COUNTER,
        (),
        "Reads of which a replica's digest was not that of the answer",
    ),
    Metric(
        "lockstep_replication_read_repair_additional_writes_total",
        COUNTER,
        (),
        "Read repairs sent to more replicas since others were slow",
    ),
    Metric("lockstep_replication_reads_in_flight", GAUGE, (), "Reads coordinated now"),
    Metric(
        "lockstep_replication_refusals_total",
        COUNTER,
        ("reason",),
        "Requests of coordinators refused here, by reason",
    ),
    Metric(
        "lockstep_replication_requests_expired_total",
        COUNTER,
        (),
        "Requests of coordinators dropped here because they had waited for too long",
    ),
    Metric(
        "lockstep_replication_replans_total",
        COUNTER,
        ("kind",),
        "Requests planned again because something that matters changed",
    ),
    Metric(
        "lockstep_replication_speculative_failed_retries_total",
        COUNTER,
        (),
        "Reads that timed out although they had asked one more replica",
    ),
    Metric(
        "lockstep_replication_speculative_insufficient_replicas_total",
        COUNTER,
        (),
        "Reads that were slow and had no more replica to ask",
    ),
    Metric(
        "lockstep_replication_speculative_retries_total",
        COUNTER,
        (),
        "Reads that asked one more replica since others were slow",
    ),
    Metric("lockstep_replication_writes_in_flight", GAUGE, (), "Writes coordinated now"),
    Metric("lockstep_ring_alarms_total", COUNTER, (), "Signs of two changes agreed on for one ring"),
    Metric("lockstep_ring_blocked_bool", GAUGE, (), "Whether too few members seem alive to agree"),
    Metric("lockstep_ring_mail_lost_total", COUNTER, (), "Messages of members dropped as too many waited"),
    Metric(
        "lockstep_ring_proposals_total", COUNTER, ("outcome",), "Proposals of this node by how they ended"
    ),
    Metric("lockstep_ring_waiting_changes", GAUGE, (), "Changes that wait here to be proposed"),
    Metric(
        "lockstep_scans_column_files_bytes", GAUGE, (), "Room that columns which readers decoded take on disk"
    ),
    Metric("lockstep_scans_sessions_expired_total", COUNTER, (), "Read sessions whose lease ran out"),
    Metric("lockstep_scans_sessions_open", GAUGE, (), "Read sessions, each with files of its own"),
    Metric("lockstep_scans_sessions_total", COUNTER, (), "Read sessions opened"),
    Metric(
        "lockstep_server_admission_limit_requests",
        GAUGE,
        (),
        "Requests of clients that this node works on at once, as it has learned",
    ),
    Metric("lockstep_server_bytes_in_flight", GAUGE, (), "Bytes of CQL requests not answered yet"),
    Metric(
        "lockstep_server_clients_closed_total",
        COUNTER,
        ("why",),
        "CQL connections closed because their clients do not read",
    ),
    Metric("lockstep_server_connections_open", GAUGE, (), "CQL connections"),
    Metric("lockstep_server_connections_refused_total", COUNTER, (), "CQL connections refused"),
    Metric("lockstep_server_faults_total", COUNTER, (), "Defects answered as server errors"),
    Metric(
        "lockstep_server_overloaded_total", COUNTER, (), "CQL requests refused because too much was in flight"
    ),
    Metric("lockstep_server_prepared_statements", GAUGE, (), "Prepared statements kept"),
    Metric("lockstep_server_requests_in_flight", GAUGE, (), "CQL requests not answered yet"),
    Metric(
        "lockstep_server_request_duration_seconds",
        HISTOGRAM,
        ("operation", "consistency", "table_class"),
        "From the moment that a CQL request was read until it was answered, also with an error",
    ),
    Metric(
        "lockstep_server_request_errors_total",
        COUNTER,
        ("operation", "code"),
        "CQL requests answered with an error, by its code",
    ),
    Metric(
        "lockstep_server_requests_shed_total",
        COUNTER,
        (),
        "CQL requests refused because they had waited for too long",
    ),
    Metric("lockstep_server_requests_total", COUNTER, (), "CQL requests with a task or a write answered"),
    Metric(
        "lockstep_server_response_bytes_owed",
        GAUGE,
        (),
        "Bytes of responses to CQL clients that do not read them",
    ),
    Metric(
        "lockstep_server_responses_refused_total",
        COUNTER,
        (),
        "Responses replaced by an error because their clients do not read",
    ),
    Metric(
        "lockstep_storage_damage_met_total",
        COUNTER,
        (),
        "Reads, merges, streams and checks that met a damaged table file",
    ),
    Metric("lockstep_storage_damaged_files", GAUGE, (), "Table files found damaged since the start"),
    Metric(
        "lockstep_storage_lacking_stretches",
        GAUGE,
        (),
        "Stretches of the store that were lost and are not filled again",
    ),
    Metric(
        "lockstep_storage_purge_fragments_dropped_total",
        COUNTER,
        ("keyspace", "table"),
        "Fragments fewer by that, deletions included",
    ),
    Metric(
        "lockstep_storage_purge_fragments_seen_total",
        COUNTER,
        ("keyspace", "table"),
        "Fragments that these passes looked at",
    ),
    Metric(
        "lockstep_storage_purge_held_back_total",
        COUNTER,
        (),
        "Passes put off since something might still deliver older data",
    ),
    Metric(
        "lockstep_storage_purge_passes_total",
        COUNTER,
        ("keyspace", "table"),
        "Times that a table was gone through",
    ),
    Metric(
        "lockstep_storage_purge_places_merged_total",
        COUNTER,
        ("keyspace", "table"),
        "Rows whose fragments became one or none",
    ),
    Metric("lockstep_streaming_bytes_total", COUNTER, ("direction",), "Bytes of files moved"),
    Metric("lockstep_streaming_damaged_files_total", COUNTER, (), "Files that arrived damaged"),
    Metric("lockstep_streaming_files_total", COUNTER, ("direction",), "Files done with"),
    Metric("lockstep_streaming_resumes_total", COUNTER, (), "Streams gone on with after a break"),
    Metric("lockstep_streaming_streams_open", GAUGE, ("direction",), "Range streams"),
    Metric("lockstep_streaming_streams_total", COUNTER, ("direction",), "Range streams begun"),
    Metric(
        "lockstep_streaming_throttled_seconds_total",
        COUNTER,
        (),
        "Time that parts were held back by the bound on throughput, all streams together",
    ),
    Metric(
        "lockstep_streaming_throughput_limit_bytes",
        GAUGE,
        (),
        "Bytes a second that this node sends at most; 0 for no bound",
    ),
    Metric(
        "lockstep_topology_acknowledged_epoch", GAUGE, ("node", "address"), "Newest epoch heard of a node"
    ),
    Metric(
        "lockstep_topology_barriers_relaxed_total",
        COUNTER,
        (),
        "Barriers that this node, as the leader, let go of quorums within data centres",
    ),
    Metric(
        "lockstep_topology_degraded_ranges",
        GAUGE,
        (),
        "Ranges that may lack writes since a node was given up by force, or left with hints that nobody took",
    ),
    Metric("lockstep_topology_operations_running", GAUGE, (), "Topology operations that run"),
    Metric(
        "lockstep_tracking_cohort_bytes_total",
        COUNTER,
        (),
        "Rows that this node got since it was away, of mutations that the others let go of",
    ),
    Metric(
        "lockstep_tracking_disagreements_total",
        COUNTER,
        (),
        "Partitions of which full repairs that this node drove found that data and ids disagree",
    ),
    Metric(
        "lockstep_tracking_mutations_in_cohorts",
        GAUGE,
        (),
        "Mutations that are in this node's tables alone, while a replica that was away lacks them",
    ),
    Metric(
        "lockstep_tracking_mutations_pulled_total", COUNTER, (), "Mutations got from other replicas by id"
    ),
    Metric(
        "lockstep_tracking_repair_ids_lacking",
        GAUGE,
        (),
        "Mutations for which repairs wait that this node drives, each once for each replica that lacks it",
    ),
    Metric("lockstep_tracking_mutations_reconciled_total", COUNTER, (), "Mutations that all replicas hold"),
    Metric(
        "lockstep_tracking_mutations_unreconciled",
        GAUGE,
        (),
        "Mutations in this node's journal (Cassandra: UnreconciledMutationCount)",
    ),
    Metric(
        "lockstep_tracking_journal_bytes",
        GAUGE,
        (),
        "Estimated size of these mutations (Cassandra: JournalDiskSpaceUsed)",
    ),
    Metric(
        "lockstep_tracking_witness_journal_bytes",
        GAUGE,
        (),
        "Estimated size of those that this node keeps as a witness",
    ),
    Metric(
        "lockstep_tracking_mutations_lacking",
        GAUGE,
        ("node",),
        "Mutations of this node that another replica is not known to hold",
    ),
    Metric("lockstep_views_building", GAUGE, (), "Views that this node builds"),
    Metric(
        "lockstep_views_left_to_replay_total",
        COUNTER,
        (),
        "Writes whose view updates were left to the batch log",
    ),
    Metric("lockstep_views_records_in_flight", GAUGE, (), "Writes whose view updates are being sent"),
    Metric(
        "lockstep_views_updates_total",
        COUNTER,
        ("replicas",),
        "Updates of views derived here, and sent to one replica or to all",
    ),
    Metric("metastorage_available", GAUGE, (), "1 while a majority of the metadata group is available"),
    Metric("metastorage_availablePeers", GAUGE, (), "Available voters of the metadata group"),
    Metric(
        "lockstep_metadata_read_only_bool",
        GAUGE,
        (),
        "Whether many nodes vanished at once",
    ),
    Metric("schemaSync_waits", HISTOGRAM, (), "Milliseconds that requests waited for newer metadata"),
)
METRICS: Final[dict[str, Metric]] = {metric.name: metric for metric in _TABLE}


class Sample(msgspec.Struct, frozen=True):
    """One value of a metric in METRICS. `suffix` is that of a histogram's series."""

    name: str
    value: float
    labels: tuple[tuple[str, str], ...] = ()
    suffix: str = ""


def histogram(
    name: str,
    of: tuple[Sequence[float], Sequence[int], float],
    labels: tuple[tuple[str, str], ...],
) -> Iterator[Sample]:
    """`of`: upper bounds, counts of what is in each and of what is above all, and the sum."""
    bounds, counts, total = of
    for end, below in zip((*map(str, bounds), "+Inf"), accumulate(counts), strict=True):
        yield Sample(name, below, (*labels, ("le", end)), "_bucket")
    yield Sample(name, total, labels, "_sum")
    yield Sample(name, sum(counts), labels, "_count")


def text_of(samples: Iterable[Sample]) -> bytes:
    """All samples as Prometheus text."""
    families: dict[str, list[str]] = {}
    for sample in samples:
        lines = families.setdefault(sample.name, [])
        metric = METRICS[sample.name]
        if not lines:
            lines += (f"# HELP {metric.name} {metric.meaning}", f"# TYPE {metric.name} {metric.kind}")
        labels = ",".join(f'{name}="{_escaped(value)}"' for name, value in sample.labels)
        series = sample.name + sample.suffix
        lines.append(
            f"{series}{{{labels}}} {_number(sample.value)}" if labels else f"{series} {_number(sample.value)}"
        )
    text = "\n".join(line for lines in families.values() for line in lines)
    return f"{text}\n".encode()


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)
