"""What members say to each other to agree on a change, and to spread what was agreed.

Invariant: everything about a proposal names the ring that it is made of by its fingerprint, so what arrives
late or twice meets another ring and does nothing.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from lockstep.ring.changes import Change, decide, end_without_change, problem
from lockstep.ring.ring import Delta, Ring


class Ballot(msgspec.Struct, frozen=True, array_like=True, order=True):
    """`launch` counts the starts of the node, so a ballot is never used for two proposals."""

    number: int
    node: str
    launch: int


#: Before every ballot.
NO_BALLOT: Final = Ballot(0, "", 0)


class Proposal(msgspec.Struct, frozen=True, array_like=True):
    """Without `changes` it ends its ring without a change. `initiator` is the node that proposed it first."""

    op: str
    initiator: str
    changes: tuple[Change, ...]
    delta: Delta

    @property
    def base(self) -> bytes:
        return self.delta.base

    def validate(self) -> None:
        assert self.op and self.initiator and self.delta.op == self.op, "a proposal has a name"
        assert bool(self.changes) >= bool(self.delta.entries), "entries come from changes"
        self.delta.validate()


def proposal_of(ring: Ring, op: str, initiator: str, changes: Sequence[Change]) -> Proposal:
    """To change `ring`; the caller has asked what is the `problem`."""
    delta = decide(ring, op, changes) if changes else end_without_change(ring, op)
    return Proposal(op, initiator, tuple(changes), delta)


class Why(enum.StrEnum):
    #: It is of another ring than this member has.
    STALE = "stale"
    #: Another proposal was promised.
    BUSY = "busy"
    #: Another initiator's ballot is higher.
    BALLOT = "ballot"
    #: The change cannot be made, or its outcome is another one.
    ILLEGAL = "illegal"
    #: It was aborted here.
    ABORTED = "aborted"
    #: The asked node has no voice on its ring.
    NO_VOICE = "no voice"


class Propose(msgspec.Struct, frozen=True, tag="propose"):
    """Accept this. `ballot` is NO_BALLOT where all must accept. `found`: it was found with an acceptor, which
    had judged it."""

    proposal: Proposal
    ballot: Ballot = NO_BALLOT
    found: bool = False


class Accept(msgspec.Struct, frozen=True, tag="accept"):
    op: str
    base: bytes
    ballot: Ballot = NO_BALLOT


class Reject(msgspec.Struct, frozen=True, tag="reject"):
    """`sequence` is of the rejecting node's ring, `promised` its ballot. `op` is "" to a Prepare."""

    op: str
    base: bytes
    ballot: Ballot
    why: Why
    text: str
    sequence: int
    promised: Ballot = NO_BALLOT


class Prepare(msgspec.Struct, frozen=True, tag="prepare"):
    """Promise to take nothing under a lower ballot, and say what was taken."""

    base: bytes
    ballot: Ballot


class Accepted(msgspec.Struct, frozen=True, array_like=True):
    ballot: Ballot
    proposal: Proposal


class Promise(msgspec.Struct, frozen=True, tag="promise"):
    base: bytes
    ballot: Ballot
    accepted: Accepted | None


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    """Of the initiator, to those that may have promised it."""

    op: str


class Ask(msgspec.Struct, frozen=True, tag="ask"):
    """What became of it? Of the initiator, by a member that promised it."""

    op: str
    base: bytes


class Summary(msgspec.Struct, frozen=True, tag="summary"):
    """What ring the sender has. `answer`: it answers another summary, and is not answered by one."""

    sequence: int
    fingerprint: bytes
    answer: bool = False


class Deltas(msgspec.Struct, frozen=True, tag="deltas"):
    """Agreed changes, each of the ring that the one before it makes."""

    deltas: tuple[Delta, ...]


class Whole(msgspec.Struct, frozen=True, tag="whole"):
    ring: Ring


Message = Propose | Accept | Reject | Prepare | Promise | Abort | Ask | Summary | Deltas | Whole


def rejection(message: Propose | Prepare, ring: Ring, why: Why, text: str, promised: Ballot) -> Reject:
    if isinstance(message, Propose):
        op, base = message.proposal.op, message.proposal.base
    else:
        op, base = "", message.base
    return Reject(op, base, message.ballot, why, text, ring.sequence, promised)


def flaw(ring: Ring, proposal: Proposal, factors: Mapping[str, int]) -> str:
    """Why a proposal of this ring is not to be accepted; "" when it may be."""
    assert proposal.base == ring.fingerprint, "a proposal of another ring is stale"
    if proposal.changes:
        found = problem(ring, proposal.changes, factors)
        if found:
            return found
    mine = proposal_of(ring, proposal.op, proposal.initiator, proposal.changes)
    return "" if mine == proposal else "its outcome is not what its changes make of this ring"
