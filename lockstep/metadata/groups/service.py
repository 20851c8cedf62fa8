"""The metadata service as the metadata records it, its voters, a running change of them, and the words for
how a consensus group fares.

Owns the definitions that reports, gauges and commands share, for the metadata and the management group alike.

A group is *Available* when all its voters are alive and healthy, *Degraded* when not all but a majority is
(of the outgoing voters too, while a change of voters needs both majorities), else *Unavailable*.

Invariant: the Raft configuration of the metadata group says who votes; what is here is the record of it in
the log, which nodes without Raft follow, and the plan that any leader carries on with. Pure functions of what
was observed; who observes what is up to the caller.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Sequence
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


class ManagementPlace(msgspec.Struct, frozen=True, array_like=True):
    """`members`: nodes that an operator named for the management group, ascending; empty: it lives on the
    voters of the metadata group."""

    members: tuple[NodeId, ...] = ()

    def validate(self) -> None:
        assert self.members == tuple(sorted(set(self.members))), "named members are sorted and unique"


MANAGEMENT_PLACE: Final[Part[ManagementPlace]] = struct_part(
    "management_place", 21, ManagementPlace(), lambda one: one.validate()
)


class LocalState(enum.StrEnum):
    HEALTHY = "Healthy"
    INITIALIZING = "Initializing"
    SNAPSHOT_INSTALLATION = "Snapshot installation"
    CATCHING_UP = "Catching up"
    BROKEN = "Broken"


class GlobalState(enum.StrEnum):
    AVAILABLE = "Available"
    DEGRADED = "Degraded"
    UNAVAILABLE = "Unavailable"


class GroupPart(enum.StrEnum):
    """What a member does in the group."""

    VOTER = "voting member"
    LEARNER = "learner"


class LocalFacts(msgspec.Struct, frozen=True):
    """What a member knows of itself.

    broken: it can take no further step. initialized: it holds some state of the group. installing: a
    snapshot is on its way in. applied, known: how far its state is, and how far it knows the group to be.
    """

    broken: bool
    initialized: bool
    installing: bool
    applied: int
    known: int


def local_state(facts: LocalFacts) -> LocalState:
    """The worst word wins: a broken member is not catching up."""
    if facts.broken:
        return LocalState.BROKEN
    if facts.installing:
        return LocalState.SNAPSHOT_INSTALLATION
    if not facts.initialized:
        return LocalState.INITIALIZING
    return LocalState.CATCHING_UP if facts.applied < facts.known else LocalState.HEALTHY


def part_of(member: int, voters: Collection[int]) -> GroupPart:
    return GroupPart.VOTER if member in voters else GroupPart.LEARNER


def available_count(voters: Sequence[int], available: Collection[int]) -> int:
    return sum(1 for voter in voters if voter in available)


def has_majority(voters: Sequence[int], available: Collection[int], outgoing: Sequence[int] = ()) -> bool:
    """Whether the available members can commit; nobody can in a group without voters."""
    both = (voters, outgoing) if outgoing else (voters,)
    return all(2 * available_count(part, available) > len(part) for part in both)


def global_state(
    voters: Sequence[int], available: Collection[int], outgoing: Sequence[int] = ()
) -> GlobalState:
    """`available`: members that are alive and whose local state is Healthy."""
    if not has_majority(voters, available, outgoing):
        return GlobalState.UNAVAILABLE
    missing = any(member not in available for member in (*voters, *outgoing))
    return GlobalState.DEGRADED if missing else GlobalState.AVAILABLE
