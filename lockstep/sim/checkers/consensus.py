"""What members of both consensus groups are handed as committed.

RFT-1: all members commit the same entries at the same places, over every crash. RFT-2: of every two
configurations that follow each other, any quorum of the one meets any quorum of the other, and whoever gets a
vote was a learner before, and holds the log up to the entry that made it one. RFT-3: what a leader commits
first is durable at a majority of the voters in force there, and ends in an entry of its own term; also when a
follower that heard of it is handed it before the leader is, whose own disk may be the slower one. CMG-1: all
members of the management group have the same state at the same index, over every crash. CMG-2: a repeated
command changes nothing. CMG-3: nobody is in the directory who was not admitted before, under the cluster id
that the group's first command gave.

Invariant: a monitor sees every committed entry and command of every incarnation and remembers the first one
seen at each place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import combinations
from typing import Any

import msgspec

from lockstep.consensus.configuration import Configuration, decode_configuration
from lockstep.consensus.messages import Entry, EntryKind
from lockstep.consensus.raft import Raft
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.directory import NodeState
from lockstep.metadata.groups.management import EMPTY_STATE, ManagementState
from lockstep.metadata.groups.ringed import RINGED
from lockstep.sim.checkers.violation import Violation

#: (node id) -> that member's consensus; None when it cannot be told now.
Member = Callable[[int], Raft | None]


class CommittedMonitor:
    """`entries` by index; `configurations` are (index, configuration), ascending."""

    def __init__(self, member: Member) -> None:
        self.entries: dict[int, Entry] = {}
        self.configurations: list[tuple[int, Configuration]] = []
        self._member = member

    def committed(self, label: str, entries: Sequence[Entry], raft: Raft | None) -> None:
        """`raft` is the consensus of the member that was handed the entries, if it is known."""
        leader = self._leader_of(raft) if raft is not None else None
        last_index = entries[-1].index if entries else 0
        # What a follower is handed may be known from the leader before this one.
        if leader is not None and 0 < last_index <= leader.commit_index and last_index not in self.entries:
            self._committed_first(leader)
        for entry in entries:
            known = self.entries.get(entry.index)
            if known is None:
                self.entries[entry.index] = entry
                if entry.kind is EntryKind.CONFIGURATION:
                    self._configured(entry.index, decode_configuration(entry.data))
            elif known != entry:
                raise Violation("RFT-1", f"{label} has committed another entry at index {entry.index}")

    def _leader_of(self, raft: Raft) -> Raft | None:
        """The consensus of whoever leads a member's term; None when that cannot be told.

        Also None when another member leads while its voters change: what it committed before was counted by
        the former ones.
        """
        if raft.is_leader:
            return raft
        leader = self._member(raft.leader) if raft.leader is not None else None
        if leader is None or not leader.is_leader or leader.term != raft.term:
            return None
        return leader if leader.is_configuration_committed else None

    def _committed_first(self, leader: Raft) -> None:
        index, configuration = leader.commit_index, leader.configuration
        term, who = leader.entry(index).term, f"member {leader.identity}"
        if term != leader.term:
            raise Violation("RFT-3", f"{who} leads term {leader.term} and commits {index} of term {term}")
        holders = [voter for voter in configuration.members() if self._holds(voter, index, term)]
        if not _holds_quorum(configuration, holders):
            raise Violation("RFT-3", f"{who} commits {index}, durable at {holders} of {configuration}")

    def _holds(self, voter: int, index: int, term: int) -> bool:
        """Whether the entry is durable there; also when that cannot be told."""
        raft = self._member(voter)
        if raft is None or index < raft.first_index:
            return True
        return raft.state.writes.durable_index >= index and raft.entry(index).term == term

    def _configured(self, index: int, now: Configuration) -> None:
        if self.configurations and index > self.configurations[-1][0]:
            made_at, before = self.configurations[-1]
            if not meet(before, now):
                raise Violation("RFT-2", f"index {index}: quorums of {before} and {now} need not meet")
            for member in now.voters:
                if not before.has_vote(member):
                    self._new_voter(index, member, made_at, before)
        self.configurations.append((index, now))

    def _new_voter(self, index: int, member: int, made_at: int, before: Configuration) -> None:
        if member not in before.learners:
            raise Violation("RFT-2", f"index {index}: {member} got a vote and was no learner")
        raft = self._member(member)
        last_index = raft.last_index if raft is not None else made_at
        if last_index < made_at:
            raise Violation(
                "RFT-2", f"index {index}: {member} got a vote; its log ends at {last_index}, before {made_at}"
            )


@cache
def meet(one: Configuration, other: Configuration) -> bool:
    """Whether any quorum of the one shares a voter with any quorum of the other. Up to nine voters in all:
    every set of them is looked at."""
    members = sorted({*one.voters, *one.outgoing, *other.voters, *other.outgoing})
    for count in range(len(members) + 1):
        for chosen in combinations(members, count):
            rest = [member for member in members if member not in chosen]
            if _holds_quorum(one, chosen) and _holds_quorum(other, rest):
                return False
    return True


def _holds_quorum(configuration: Configuration, members: Sequence[int]) -> bool:
    """By counting, not by the product's functions."""
    groups = [group for group in (configuration.voters, configuration.outgoing) if group]
    return all(2 * sum(1 for voter in group if voter in members) > len(group) for group in groups)


class ManagementMonitor:
    """`newest` is the state of the highest index that any member applied."""

    def __init__(self) -> None:
        self.newest: ManagementState = EMPTY_STATE
        self._states: dict[int, ManagementState] = {}
        self._ids: dict[bytes, int] = {}
        self._at: dict[str, ManagementState] = {}
        #: Every host that was ever admitted, under the ids that the group had.
        self._admitted: dict[str, None] = {}

    def __call__(self, _now_ns: int, label: str, kind: str, facts: dict[str, Any]) -> None:
        if kind == "management.began":
            self._at.pop(label, None)
        elif kind == "management.installed":
            self._installed(label, facts["state"])
        elif kind == "management.applied":
            self.applied(label, facts["state"], facts["command_id"])

    def _installed(self, label: str, state: ManagementState) -> None:
        """A group that begins behind the entry that built a log begins with a state that no command made."""
        self._at[label] = state
        if not self._same(label, state) and not self._states:
            self._states[state.index] = self.newest = state
            self._admitted.update(dict.fromkeys(node.host_id for node in state.nodes))

    def applied(self, label: str, state: ManagementState, command_id: bytes) -> None:
        """`label` is name.incarnation; each member begins with nothing, or with a snapshot."""
        before = self._at.get(label)
        if before is not None and state.index <= before.index:
            raise Violation("CMG-1", f"{label} applied {state.index} after {before.index}")
        self._at[label] = state
        if self._same(label, state):
            return
        self._states[state.index] = state
        if state.index < self.newest.index:
            raise Violation("CMG-1", f"{label} applied {state.index}; nobody did before {self.newest.index}")
        self._once(label, self.newest, state, command_id)
        state.validate()
        self.newest = state
        self._admitted.update(dict.fromkeys(node.host_id for node in state.nodes))

    def _same(self, label: str, state: ManagementState) -> bool:
        """Whether another member was at this index before; then it had this state."""
        known = self._states.get(state.index)
        if known is None:
            return False
        if (known.hash, known.digest) != (state.hash, state.digest):
            raise Violation("CMG-1", f"{label} has another state at index {state.index}")
        return True

    def _once(self, label: str, before: ManagementState, after: ManagementState, command_id: bytes) -> None:
        at = self._ids.setdefault(command_id, after.index)
        same = msgspec.structs.replace(after, index=before.index, hash=before.hash)
        if at != after.index and same != before:
            raise Violation("CMG-2", f"{label} applied the command of index {at} again at {after.index}")

    def first_applied(self, before: ClusterMetadata, after: ClusterMetadata) -> None:
        """A new epoch of the metadata; without a log there is no management group that it would follow."""
        if after.is_on_ring:
            return
        if before.is_on_ring:
            # The group begins with the nodes that were there when the log was built.
            self._admitted.update(dict.fromkeys(node.host_id for node in after.directory.nodes))
        if after.parts[RINGED].built_epoch and not self._states:
            return
        if after.identity.cluster_id != self.newest.cluster_id:
            raise Violation("CMG-3", f"the metadata is of cluster {after.identity.cluster_id}")
        for node in after.directory.nodes[len(before.directory.nodes) :]:
            if node.host_id not in self._admitted:
                raise Violation("CMG-3", f"node {node.id} is registered and was not admitted")

    def lacking(self, state: ManagementState, metadata: ClusterMetadata) -> str:
        """What a member's state lacks of all that was applied and recorded; empty when nothing."""
        if state.index != self.newest.index:
            return f"index {state.index}, not {self.newest.index}"
        if state.voters.voters != tuple(metadata.voters):
            return f"voters {state.voters.voters}, not {tuple(metadata.voters)}"
        known = {node.host_id: int(node.node_id) for node in state.nodes}
        wanted = {
            node.host_id: int(node.id)
            for node in metadata.directory.nodes
            if node.state is not NodeState.LEFT
        }
        return "" if known == wanted else f"nodes {sorted(known.values())}, not {sorted(wanted.values())}"
