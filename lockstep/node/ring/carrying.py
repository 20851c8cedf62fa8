"""The ring of a cluster that runs on it without a log, and what may be agreed on there.

Each ring of such a cluster is one epoch, and the change to the next one carries the entry that makes it. The
ring follows from the metadata: its members are the nodes, its sequence is the epoch, its history the hash of
the last entry. So the fingerprint stands for all metadata, and who accepts a change has judged its entry.

Invariant: equal metadata make equal rings. Nobody accepts what its own metadata refuses, or what needs a log.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.directory import NodeInfo, NodeState
from lockstep.metadata.groups.membership import refuse_while_frozen
from lockstep.metadata.groups.ring_entries import refuse_lacking_a_log, refuse_needing_a_log
from lockstep.metadata.groups.ringed import RINGED, Ringed
from lockstep.metadata.log.apply import apply_entry
from lockstep.metadata.log.entries import ENTRY_DECODER, LogEntry
from lockstep.metadata.log.registry import EntryKind, Registry
from lockstep.metadata.operations import Operation
from lockstep.ring.messages import Proposal
from lockstep.ring.ring import VOTING, Delta, Member, Mode, Ring, Status, delta_to
from lockstep.values.codec import UNREADABLE, encode
from lockstep.values.errors import CannotApply, Rejected
from lockstep.values.ids import NodeId
from lockstep.values.memo import memo

_STATUS: Final[Mapping[NodeState, Status]] = {
    NodeState.NONE: Status.ADMITTED,
    NodeState.BOOTSTRAPPING: Status.JOINING,
    NodeState.REPLACING: Status.REPLACING,
    NodeState.NORMAL: Status.NORMAL,
    NodeState.REBUILDING: Status.NORMAL,
    NodeState.DECOMMISSIONING: Status.LEAVING,
    NodeState.REMOVING: Status.REMOVING,
    NodeState.LEFT: Status.LEFT,
}


def ring_of(cluster: ClusterMetadata) -> Ring:
    """The ring that the nodes of this metadata have."""
    assert cluster.is_on_ring, "a cluster with a log has no ring of its own"
    return memo(cluster, "_ring", _ring_of)


def _ring_of(cluster: ClusterMetadata) -> Ring:
    return _ring_by(cluster, cluster.parts[RINGED])


def _ring_by(cluster: ClusterMetadata, rules: Ringed) -> Ring:
    """The ring of these nodes, with the mode and the voices of these rules."""
    running = {node: one for one in cluster.operations for node in (one.about.node,)}
    members = [_member(cluster, node, running.get(node.id)) for node in cluster.directory.nodes]
    voiced = [
        msgspec.structs.replace(member, status=Status.SILENCED)
        if int(member.node) in rules.silenced and member.status in VOTING
        else member
        for member in members
    ]
    ordered = tuple(sorted(voiced, key=lambda member: member.node))
    return Ring(Mode(rules.mode), cluster.epoch, ordered, cluster.hash)


def name_of(node: NodeId) -> str:
    """What a node is called in the ring."""
    assert node > 0, "a node has an id"
    return str(node)


def _member(cluster: ClusterMetadata, node: NodeInfo, operation: Operation | None) -> Member:
    """A node without tokens that are, or are to be, its own has no voice, whatever it does."""
    status = _STATUS[node.state]
    pending: tuple[int, ...] = ()
    replaces = ""
    if operation is not None and node.state in (NodeState.BOOTSTRAPPING, NodeState.NORMAL):
        pending = tuple(token for token in operation.tokens if token not in node.tokens)
    elif operation is not None and node.state is NodeState.REPLACING:
        dead = cluster.directory.by_id[operation.about.departing]
        pending, replaces = dead.tokens, name_of(dead.id)
    if status is Status.NORMAL and pending:
        status = Status.MOVING
    assert not replaces or pending, "who is replaced owns tokens"
    if status is not Status.LEFT and not node.tokens and not pending:
        status, replaces = Status.ADMITTED, ""
    return Member(name_of(node.id), node.epoch, status, node.dc, node.rack, node.tokens, pending, replaces)


def proposal_name(entry: LogEntry) -> str:
    """What the change that carries the entry is called."""
    assert entry.epoch > 1, "the first ring is founded"
    return f"{entry.epoch}-{entry.hash.hex()[:12]}"


def carried_by(before: ClusterMetadata, after: ClusterMetadata, entry: LogEntry) -> Delta:
    """The change of the ring that carries `entry`, which makes `after` of `before`."""
    assert (after.epoch, after.hash) == (entry.epoch, entry.hash), "the entry makes the value"
    assert entry.previous_hash == before.hash, "the entry follows"
    return delta_to(ring_of(before), proposal_name(entry), ring_after(before, after), encode(entry))


def ring_after(before: ClusterMetadata, after: ClusterMetadata) -> Ring:
    """The ring that an entry makes of `before`; the one that builds the log makes the last ring, of the kind
    that the one before was."""
    assert before.is_on_ring and after.epoch == before.epoch + 1, "one entry on the ring"
    return ring_of(after) if after.is_on_ring else _ring_by(after, before.parts[RINGED])


def entry_in(delta: Delta) -> LogEntry:
    """One of the errors of `codec.UNREADABLE` when it carries something else."""
    assert delta.carried, "it carries something"
    return ENTRY_DECODER.decode(delta.carried)


def is_end(proposal: Proposal) -> bool:
    """Whether it ends its ring without a change."""
    return entry_in(proposal.delta).kind == EntryKind.END_RING


def judge(cluster: ClusterMetadata, registry: Registry, proposal: Proposal) -> str:
    """Why a member with this metadata does not accept the proposal of its ring; "" when it does."""
    assert proposal.base == ring_of(cluster).fingerprint, "a proposal is of the member's ring"
    try:
        entry = entry_in(proposal.delta)
        refuse_needing_a_log(entry.kind)
        refuse_while_frozen(cluster, entry.kind)
        after = apply_entry(cluster, entry, registry)
        if entry.kind == EntryKind.SCHEMA_CHANGE:
            refuse_lacking_a_log(cluster, after)
    except UNREADABLE as error:
        return f"what it carries cannot be read: {error}"
    except (CannotApply, Rejected) as error:
        return error.message
    mine = carried_by(cluster, after, entry)
    same = mine == proposal.delta and proposal.is_end == is_end(proposal)
    return "" if same else "its outcome is not what its entry makes of this ring"
