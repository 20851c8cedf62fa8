"""Bodies of the node-to-node messages that concern the management group and how groups fare."""

from __future__ import annotations

import msgspec

from lockstep.metadata.groups.management import Refusal
from lockstep.metadata.groups.management_commands import Command


class Manage(msgspec.Struct, frozen=True, array_like=True):
    """A command for the group's leader. A `base_index` of -1 asks which index to name."""

    command: Command


class Managed(msgspec.Struct, frozen=True, array_like=True):
    """The command's outcome, at its first index. Index 0: nothing was proposed; name `base_index`."""

    index: int
    refusal: Refusal | None = None
    base_index: int = 0


class AskGroup(msgspec.Struct, frozen=True, array_like=True):
    group: int


class GroupReport(msgspec.Struct, frozen=True, array_like=True):
    """What a node says of its part in a group, without asking anyone else.

    state: a word of LocalState, and part one of Part; both empty when the node has no part in the group.
    term, index: of the last entry it holds. epoch, hash: of the last state it applied (of the management
    group: index and chained hash of the last command). voters, outgoing: the newest configuration it knows.
    """

    group: int
    node: int
    state: str
    part: str
    term: int
    index: int
    epoch: int
    hash: bytes
    voters: tuple[int, ...]
    outgoing: tuple[int, ...] = ()
    leader: int | None = None
    reason: str = ""
    learners: tuple[int, ...] = ()
    #: The configuration is committed, so whom it leaves out is out.
    settled: bool = False
