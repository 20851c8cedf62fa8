"""Bodies of the requests between those who propose conditional writes and the replicas that accept them.

`epoch` and `needs_epoch` are as in `messages`: ballots move and are fenced as writes are. Every request names
its partition.
"""

from __future__ import annotations

import msgspec

from lockstep.consensus.paxos import Acceptor, Ballot, Proposal
from lockstep.values.rows import ReadCommand, ReadResult


class Place(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One partition of one table."""

    table_id: int
    token: int
    key: bytes


class PrepareRequest(msgspec.Struct, frozen=True, array_like=True):
    """`command`: what is to be read in the step of the promise. NO_BALLOT asks for no promise."""

    epoch: int
    needs_epoch: int
    place: Place
    ballot: Ballot
    command: ReadCommand


class PrepareReply(msgspec.Struct, frozen=True, array_like=True):
    """`result` None: no promise, for `state` has one that is not older."""

    accepted_epoch: int
    state: Acceptor
    result: ReadResult | None


class ProposeRequest(msgspec.Struct, frozen=True, array_like=True):
    epoch: int
    needs_epoch: int
    place: Place
    proposal: Proposal


class ProposeReply(msgspec.Struct, frozen=True, array_like=True):
    """`floor`: what another ballot has to be later than, when it was not accepted."""

    accepted_epoch: int
    accepted: bool
    floor: Ballot


class CommitRequest(msgspec.Struct, frozen=True, array_like=True):
    epoch: int
    needs_epoch: int
    place: Place
    proposal: Proposal


class CommitReply(msgspec.Struct, frozen=True, array_like=True):
    accepted_epoch: int
