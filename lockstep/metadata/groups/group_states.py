"""The words for how a consensus group fares: of one member, of the whole, and the part a member plays.

Owns the definitions that reports, gauges and commands share, for the metadata and the management group alike.
Invariant: pure functions of what was observed; who observes what is up to the caller.

A group is *Available* when all its voters are alive and healthy, *Degraded* when not all but a majority is
(of the outgoing voters too, while a change of voters needs both majorities), else *Unavailable*.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Sequence

import msgspec


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


class Part(enum.StrEnum):
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


def part_of(member: int, voters: Collection[int]) -> Part:
    return Part.VOTER if member in voters else Part.LEARNER


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
