"""The metadata service as the metadata records it: its voters, a running change of them, and its rules.

Invariant: the Raft configuration of the metadata group says who votes; what is here is the record of it in
the log, which nodes without Raft follow, and the plan that any leader carries on with.
"""

from __future__ import annotations

from typing import Final

import msgspec

from lockstep.metadata.part import Part, struct_part
from lockstep.values.ids import NodeId


class MembershipChange(msgspec.Struct, frozen=True, array_like=True):
    """A change of voters under way: all additions, then all removals, one at a time.

    `id` is the epoch of the entry that began it; `index` counts the finished sub-steps, the additions first.
    """

    id: int
    additions: tuple[NodeId, ...]
    removals: tuple[NodeId, ...]
    index: int = 0
    reason: str = ""
    #: The operator's (or policy's) wish is over: finish or undo the sub-step under way, then end.
    cancelled: bool = False

    @property
    def steps(self) -> int:
        return len(self.additions) + len(self.removals)

    @property
    def member(self) -> NodeId:
        """Whom the present sub-step adds or removes."""
        return (*self.additions, *self.removals)[self.index]

    @property
    def adds(self) -> bool:
        """Whether the present sub-step adds its member."""
        return self.index < len(self.additions)

    def title(self) -> str:
        """How people refer to it: `change 7 of the voters (adds 4, removes 1)`."""
        parts = [
            f"{word} {', '.join(str(node) for node in nodes)}"
            for word, nodes in (("adds", self.additions), ("removes", self.removals))
            if nodes
        ]
        return f"change {self.id} of the voters ({', '.join(parts)})"


class Service(msgspec.Struct, frozen=True, array_like=True):
    """`voters` ascending. `size` 0: follows the size of the cluster.

    `frozen` says why changes are refused (empty: they are not). `snapshot_epoch` is the epoch of the latest
    snapshot entry, `truncated_epoch` up to which nodes may drop log entries. `recovery_generation` counts
    repairs of this group by recovery. `leaving`: nodes whose decommission is wanted; they lose their vote
    first. `paused` says why voters are not changed automatically (empty: they are). `snapshot_voters` are
    those that the latest snapshot names, whom newcomers ask to confirm it.
    """

    voters: tuple[NodeId, ...] = ()
    size: int = 0
    change: MembershipChange | None = None
    frozen: str = ""
    snapshot_epoch: int = 0
    truncated_epoch: int = 0
    recovery_generation: int = 0
    leaving: tuple[NodeId, ...] = ()
    paused: str = ""
    snapshot_voters: tuple[NodeId, ...] = ()

    @property
    def members(self) -> tuple[NodeId, ...]:
        """Nodes that take part in consensus, or soon will: the voters and those being added, ascending."""
        coming = self.change.additions if self.change is not None else ()
        return tuple(sorted({*self.voters, *coming}))

    def validate(self) -> None:
        assert self.voters == tuple(sorted(set(self.voters))), "voters are sorted and unique"
        assert self.truncated_epoch <= self.snapshot_epoch, "only what a snapshot holds is truncated"
        change = self.change
        if change is not None:
            assert 0 <= change.index < change.steps, "a change has steps and a position in them"
        assert self.leaving == tuple(sorted(set(self.leaving))), "leaving nodes are sorted and unique"


NO_SERVICE = Service()

SERVICE: Final[Part[Service]] = struct_part("service", 6, NO_SERVICE, lambda one: one.validate())
