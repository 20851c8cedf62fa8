"""The next safe step from the members a consensus group has to those it should have.

Owns the order: a newcomer learns first, votes once it has caught up, and only then is a former voter let
go, one at a time; a leader that is to go hands leadership over before. Invariant: a pure function of the
configuration in force and what the leader knows, so any leader carries on, and any step may be repeated.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

#: More voters are never in one configuration; when a group is full, one goes before one comes.
GROUP_VOTERS_MAX = 7


class Members(msgspec.Struct, frozen=True):
    """Sorted ids."""

    voters: tuple[int, ...]
    learners: tuple[int, ...] = ()


class Configure(msgspec.Struct, frozen=True):
    """Propose this configuration."""

    members: Members


class HandOver(msgspec.Struct, frozen=True):
    """Transfer leadership to this voter."""

    target: int


class WaitFor(msgspec.Struct, frozen=True):
    """Nothing can be done before this member has caught up."""

    member: int


class Settled(msgspec.Struct, frozen=True):
    """The group has the members it should have."""


Step = Configure | HandOver | WaitFor | Settled


def next_step(wanted: Collection[int], members: Members, caught_up: Collection[int], leader: int) -> Step:
    """`caught_up`: members whose log is close to the leader's; `leader` asks."""
    assert wanted, "a group keeps one voter at least"
    assert set(members.voters).isdisjoint(members.learners), "a member votes or learns"
    goal = sorted(wanted)
    missing = [member for member in goal if member not in members.voters]
    former = [member for member in members.voters if member not in goal]
    full = len(members.voters) >= GROUP_VOTERS_MAX
    strangers = [member for member in members.learners if member not in goal]
    if strangers:
        return Configure(_without(members, strangers[0]))
    if missing and not (full and former):
        return _addition(missing, members, caught_up)
    if former:
        return _removal(goal, former, members, caught_up, leader)
    return Settled()


def _addition(missing: list[int], members: Members, caught_up: Collection[int]) -> Step:
    for member in missing:
        if member in members.learners and member in caught_up:
            assert len(members.voters) < GROUP_VOTERS_MAX, "there is room for a voter"
            learners = tuple(other for other in members.learners if other != member)
            return Configure(Members(tuple(sorted((*members.voters, member))), learners))
    for member in missing:
        if member not in members.learners:
            return Configure(Members(members.voters, tuple(sorted((*members.learners, member)))))
    return WaitFor(missing[0])


def _removal(
    goal: list[int], former: list[int], members: Members, caught_up: Collection[int], leader: int
) -> Step:
    others = [member for member in former if member != leader]
    if others:
        gone = next((member for member in others if member not in caught_up), others[0])
        left = _without(members, gone)
        late = [member for member in left.voters if member != leader and member not in caught_up]
        # Also where it is `gone` that may be dead: one of few is late as well right after an election.
        if 2 * (len(left.voters) - len(late)) <= len(left.voters):
            return WaitFor(late[0])  # Without it those that remain could not commit anything any more.
        return Configure(left)
    staying = [member for member in goal if member in members.voters]
    assert staying, "a voter stays"
    ready = [member for member in staying if member in caught_up]
    return HandOver(ready[0]) if ready else WaitFor(staying[0])


def _without(members: Members, gone: int) -> Members:
    assert gone in members.voters or gone in members.learners, "who goes was a member"
    return Members(
        tuple(member for member in members.voters if member != gone),
        tuple(member for member in members.learners if member != gone),
    )
