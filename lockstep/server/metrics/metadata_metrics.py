"""Gauges and counters of the metadata: the log, its groups, catching up, snapshots, commits.

Invariant: as in server.metrics, names are `lockstep_<room>_<thing>_<unit>`; a scrape asks nobody and reads no
file; what is told of other nodes is what this node has heard.
"""

from __future__ import annotations

from collections.abc import Iterator

from lockstep.metadata.directory import NodeState
from lockstep.node.log.commit_times import BOUNDS_S
from lockstep.node.log.raft_driver import RaftDriver
from lockstep.node.services import NodeServices
from lockstep.server.metrics.samples import Sample, histogram
from lockstep.server.reports.recovery import GROUPS
from lockstep.server.views.live_views import seen_epoch

_COMMIT = "lockstep_metadata_commit_duration_seconds"


def metadata_samples(node: NodeServices) -> Iterator[Sample]:
    cluster = node.log.cluster
    yield Sample("lockstep_metadata_epoch_entries", cluster.epoch)
    yield Sample("lockstep_metadata_leader_bool", node.log.is_leader)
    broken = node.log.state.broken is not None
    yield Sample("lockstep_metadata_stopped_bool", broken)
    frozen = bool(cluster.service.frozen)
    yield Sample("lockstep_metadata_frozen_bool", frozen)
    yield from _lags(node)
    yield from _log_and_snapshots(node)
    yield from _commits(node)
    yield from _catch_up(node)
    yield from _announcements(node)
    yield from _groups(node)


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
        yield from histogram(_COMMIT, (BOUNDS_S, times.counts, times.total_s), (("outcome", outcome),))


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


def _announcements(node: NodeServices) -> Iterator[Sample]:
    for origin, count in (("own", node.log.announcer.sent), ("forwarded", node.log.announcer.forwarded)):
        yield Sample("lockstep_gossip_announcements_total", count, (("origin", origin),))


def _groups(node: NodeServices) -> Iterator[Sample]:
    """Both groups, as this node takes part in them; voters as it knows them."""
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
