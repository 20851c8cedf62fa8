"""What nodes say of the consensus groups: `group-local-states/1` and `group-global-state/1`."""

from __future__ import annotations

import msgspec


class LocalState(msgspec.Struct, frozen=True):
    """What one node says of its part; all but `reason` is null of one that does not answer."""

    node: int
    address: str = ""
    answered: bool = False
    state: str | None = None
    role: str | None = None
    term: int | None = None
    index: int | None = None
    epoch: int | None = None
    hash: str | None = None
    leader: int | None = None
    reason: str = ""


class LocalStates(msgspec.Struct, frozen=True):
    schema: str = "group-local-states/1"
    group: str = ""
    asked: int = 0
    states: tuple[LocalState, ...] = ()


class GroupMember(msgspec.Struct, frozen=True):
    node: int
    available: bool = False
    state: str | None = None
    reason: str = ""


class GlobalState(msgspec.Struct, frozen=True):
    """A group as a whole, from what its voters answered."""

    schema: str = "group-global-state/1"
    group: str = ""
    asked: int = 0
    state: str = ""
    voters: tuple[int, ...] = ()
    outgoing: tuple[int, ...] = ()
    available_peers: int = 0
    members: tuple[GroupMember, ...] = ()
