"""CMS-1: the voters of the metadata group change one at a time, only by a running change, of which there is
one at most, and the record of them is what Raft has in force. CMS-2: a freeze holds. CMS-3: no change of the
voters leads to a group that survives fewer losses than before, unless the cluster has no more members."""

from __future__ import annotations

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.directory import NodeInfo, NodeState
from lockstep.metadata.groups.service import Service
from lockstep.metadata.groups.voter_choice import choose_voters, dc_limit
from lockstep.metadata.log.entries import LogEntry
from lockstep.metadata.log.registry import EntryKind
from lockstep.node.node import Node
from lockstep.sim.checkers.violation import Violation
from lockstep.topology.kinds.replace import Replace

#: Kinds that the design lets pass while the service is frozen.
_WHILE_FROZEN = (
    EntryKind.UPDATE_NODE,
    EntryKind.SNAPSHOT,
    EntryKind.TRUNCATE_LOG,
    EntryKind.PREPARE_MEMBERSHIP,
    EntryKind.ADVANCE_MEMBERSHIP,
    EntryKind.CANCEL_MEMBERSHIP,
    EntryKind.SET_SERVICE,
    # Shutting a node out is a matter of safety, and of no data.
    EntryKind.EXCLUDE_NODES,
    EntryKind.INCLUDE_NODES,
)


def check_voters(before: ClusterMetadata, after: ClusterMetadata) -> None:
    """At each new epoch: any majority of the voters before meets any majority of those after."""
    if not after.voters:
        raise Violation("CMS-1", f"epoch {after.epoch} has no voters")
    if before.epoch and len(set(before.voters) ^ set(after.voters)) > 1:
        raise Violation("CMS-1", f"epoch {after.epoch} takes voters {before.voters} to {after.voters}")
    if before.voters not in ((), after.voters) and before.service.change is None:
        raise Violation("CMS-1", f"epoch {after.epoch} changes voters without a change that runs")
    _check_change(before.service, after.service)
    _check_tolerance(before, after)
    for operation in after.operations:
        if operation.about.departing and operation.about.departing in after.service.members:
            raise Violation("CMS-1", f"{operation.title()} runs, and that node votes")
    for voter in after.voters:
        if after.directory.by_id[voter].state is NodeState.LEFT:
            raise Violation("CMS-1", f"voter {voter} has left")


def _check_change(before: Service, after: Service) -> None:
    """One change at a time, whose sub-steps follow each other and have their effect when they are over."""
    one, other = before.change, after.change
    if one is None:
        return
    if other is not None and other.id != one.id:
        raise Violation("CMS-1", f"{other.title()} begins while {one.title()} runs")
    if other is not None and other.index not in (one.index, one.index + 1):
        raise Violation("CMS-1", f"{other.title()} goes from sub-step {one.index} to {other.index}")
    over = other is None or other.index != one.index
    if over and not one.cancelled and (one.member in after.voters) != one.adds:
        raise Violation("CMS-1", f"{one.title()} ends sub-step {one.index} without its effect")


def _check_tolerance(before: ClusterMetadata, after: ClusterMetadata) -> None:
    """CMS-3: judged when a change begins, by where it leads; on the way a group survives no less."""
    change = after.service.change
    if change is None or change.id != after.epoch:
        return
    led_to = len({*after.voters, *change.additions} - {*change.removals})
    survives, survived = (led_to - 1) // 2, (len(before.voters) - 1) // 2
    allowed = (_votes_allowed(before) - 1) // 2
    # An operator who names the voters, or their number, has asked for it.
    if not before.service.size and not after.service.size and survives < min(survived, allowed):
        raise Violation(
            "CMS-3",
            f"epoch {after.epoch}, {change.title()}: {led_to} voters survive {survives} losses; "
            f"{len(before.voters)} did survive {survived}, and the members allow {allowed}",
        )


def _votes_allowed(cluster: ClusterMetadata) -> int:
    """How many may vote at most, by how many nodes the cluster has once those have left that are to leave."""
    members = [node for node in cluster.directory.nodes if node.may_vote and _is_member(cluster, node)]
    able = [node.dc for node in members if node.id not in cluster.excluded_by_node]
    wanted = next((votes for most, votes in ((2, 1), (5, 3), (100, 5)) if len(members) <= most), 7)
    dcs = sorted(set(able))
    for votes in range(wanted, 1, -2):
        limit = dc_limit(votes, len(dcs))
        if sum(min(able.count(dc), limit) for dc in dcs) >= votes:
            return votes
    return 1


def _is_member(cluster: ClusterMetadata, node: NodeInfo) -> bool:
    if node.id in cluster.service.leaving or any(node.id == o.about.departing for o in cluster.operations):
        return False
    if node.state in (NodeState.NORMAL, NodeState.REBUILDING):
        return True
    return any(isinstance(one.body, Replace) and one.node == node.id for one in cluster.requests.live)


def check_entry(before: ClusterMetadata, entry: LogEntry) -> None:
    """CMS-2: while the service is frozen, nothing but the service itself changes."""
    if before.service.frozen and entry.kind not in _WHILE_FROZEN:
        raise Violation("CMS-2", f"epoch {entry.epoch} is an entry of kind {entry.kind}, and all is frozen")


def unsettled_voters(cluster: ClusterMetadata, leader: Node | None) -> str:
    """Why the voters are not yet those that should be, by the metadata and by Raft; empty when they are."""
    service = cluster.service
    if service.change is not None:
        return f"{service.change.title()} runs"
    if service.leaving:
        return f"nodes {list(service.leaving)} wait to leave"
    if leader is None or leader.log.driver is None:
        return "nobody leads"
    configuration = leader.log.driver.raft.configuration
    if configuration.voters != service.voters or configuration.learners or configuration.outgoing:
        return f"Raft has {configuration}, recorded are {list(service.voters)}"
    if len(service.voters) % 2 == 0:
        return f"voters {list(service.voters)} are an even number"
    wanted = choose_voters(cluster)
    if not service.paused and wanted != service.voters:
        return f"voters are {list(service.voters)}, wanted are {list(wanted)}"
    return ""
