"""What members say to each other to agree on a change, and to spread what was agreed.

Invariant: everything about a proposal names the ring that it is made of by its fingerprint, so what arrives
late or twice meets another ring and does nothing.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from lockstep.ring.changes import Change, decide, end_without_change, problem
from lockstep.ring.ring import Delta, Ring
from lockstep.values.memo import memo


class Ballot(msgspec.Struct, frozen=True, array_like=True, order=True):
    """`launch` counts the starts of the node, so a ballot is never used for two proposals."""

    number: int
    node: str
    launch: int


#: Before every ballot.
NO_BALLOT: Final = Ballot(0, "", 0)


class Proposal(msgspec.Struct, frozen=True, array_like=True, dict=True):
    """Without `changes` it ends its ring without a change, unless its delta carries something: then it
    does so when `ends` says so. `initiator` is the node that proposed it first."""

    op: str
    initiator: str
    changes: tuple[Change, ...]
    delta: Delta
    ends: bool = False

    @property
    def is_end(self) -> bool:
        return self.ends or not (self.changes or self.delta.carried)

    @property
    def base(self) -> bytes:
        return self.delta.base

    def validate(self) -> None:
        # Those who hold it are asked after each step.
        memo(self, "_is_sound", _is_sound)


def _is_sound(proposal: Proposal) -> bool:
    assert proposal.op and proposal.initiator and proposal.delta.op == proposal.op, "a proposal has a name"
    known = proposal.changes or proposal.delta.carried
    assert bool(known) >= bool(proposal.delta.entries), "entries come from changes"
    proposal.delta.validate()
    return True


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


#: Why what a proposal of a ring carries is not to be agreed on; "" when it may be.
Judge = Callable[[Ring, Proposal], str]


class Terms(msgspec.Struct, frozen=True):
    """What a member judges proposals by. `factors`: how many owners each data centre needs at least; `judge`
    is of what proposals carry, which nobody accepts who cannot read it."""

    factors: Mapping[str, int] = {}
    judge: Judge | None = None


def flaw(ring: Ring, proposal: Proposal, terms: Terms) -> str:
    """Why a proposal of this ring is not to be accepted; "" when it may be."""
    assert proposal.base == ring.fingerprint, "a proposal of another ring is stale"
    if proposal.delta.carried:
        return terms.judge(ring, proposal) if terms.judge is not None else "nobody here reads what it carries"
    if proposal.changes:
        found = problem(ring, proposal.changes, terms.factors)
        if found:
            return found
    mine = proposal_of(ring, proposal.op, proposal.initiator, proposal.changes)
    return "" if mine == proposal else "its outcome is not what its changes make of this ring"
