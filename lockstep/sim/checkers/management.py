"""CMG-1, CMG-2 and CMG-3, from what members of the management group say they applied.

CMG-1: all members have the same state at the same index, over every crash. CMG-2: an id is applied once: a
repeated command changes nothing. CMG-3: nobody is in the directory who was not admitted before, under the
cluster id that the group's first command gave. Invariant: the monitor sees every applied command of every
incarnation, and remembers the first state seen at each index.
"""

from __future__ import annotations

from typing import Any

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.directory import NodeState
from lockstep.metadata.groups.management import EMPTY_STATE, ManagementState
from lockstep.sim.checkers.violation import Violation


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
            self._same(label, facts["state"])
            self._at[label] = facts["state"]
        elif kind == "management.applied":
            self.applied(label, facts["state"], facts["command_id"])

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
        """A new epoch of the metadata."""
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
