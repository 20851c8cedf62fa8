"""The metadata service as the metadata records it: its voters, a running change of them, and its rules.

Invariant: the Raft configuration of the metadata group says who votes; what is here is the record of it in
the log, which nodes without Raft follow, and the plan that any leader carries on with.
"""

from __future__ import annotations

import msgspec

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


class Service(msgspec.Struct, frozen=True, array_like=True):
    """`voters` ascending. `size` 0: follows the size of the cluster.

    `frozen` says why changes are refused (empty: they are not). `snapshot_epoch` is the epoch of the latest
    snapshot entry, `truncated_epoch` up to which nodes may drop log entries. `recovery_generation` counts
    repairs of this group by recovery.
    """

    voters: tuple[NodeId, ...] = ()
    size: int = 0
    change: MembershipChange | None = None
    frozen: str = ""
    snapshot_epoch: int = 0
    truncated_epoch: int = 0
    recovery_generation: int = 0

    def validate(self) -> None:
        assert self.voters == tuple(sorted(set(self.voters))), "voters are sorted and unique"
        assert self.truncated_epoch <= self.snapshot_epoch, "only what a snapshot holds is truncated"
        change = self.change
        if change is not None:
            steps = len(change.additions) + len(change.removals)
            assert 0 <= change.index <= steps and steps > 0, "a change has steps and a position in them"


NO_SERVICE = Service()
