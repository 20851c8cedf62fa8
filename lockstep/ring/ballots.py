"""A majority accepts, under ballots: one decision of Paxos for each ring.

Invariant: an acceptor that promised a ballot takes nothing under a lower one, and it votes on the ring that
it has alone; what it promised and took outlives restarts until its ring is another one, and then it never
votes on the old one again. An initiator that finds something accepted proposes that, under its ballot, and
not its own. So of one ring one proposal is decided, whoever dies, and whoever finishes it: no initiator is
waited for, members that are dead need not be asked, and an abort is a proposal to end the ring without a
change, which loses against a commit that may have been decided.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

import msgspec

from lockstep.ring.limits import RING_BACKOFF_MS, RING_BACKOFF_MS_MAX, RING_PROPOSAL_MS, RING_RETRY_MS
from lockstep.ring.messages import (
    NO_BALLOT,
    Accept,
    Accepted,
    Ballot,
    Prepare,
    Promise,
    Proposal,
    Propose,
    Reject,
    Terms,
    Why,
    flaw,
    rejection,
)
from lockstep.ring.ring import Ring


def majority(ring: Ring) -> int:
    """So many acceptors decide: two such sets have a member in common."""
    assert ring.voters, "a ring has members"
    return len(ring.voters) // 2 + 1


class VotedState(msgspec.Struct, frozen=True, array_like=True):
    """What an acceptor keeps of the ring `base`: written before anything is said of it."""

    base: bytes
    promised: Ballot = NO_BALLOT
    accepted: Accepted | None = None


class Votes:
    """The acceptor of one node."""

    def __init__(self, node: str, state: VotedState) -> None:
        self._node = node
        self._state = state

    @property
    def state(self) -> VotedState:
        return self._state

    @property
    def pending(self) -> Proposal | None:
        """What was accepted here, and may be decided."""
        return self._state.accepted.proposal if self._state.accepted is not None else None

    def validate(self) -> None:
        accepted = self._state.accepted
        if accepted is not None:
            accepted.proposal.validate()
            assert accepted.ballot <= self._state.promised, "what is accepted was promised"
            assert accepted.proposal.base == self._state.base, "a vote is for a change of this ring"

    def prepare(self, ring: Ring, asked: Prepare) -> Promise | Reject:
        refused = self._refused(ring, asked, asked.base)
        if refused is not None:
            return refused
        self._state = msgspec.structs.replace(self._state, promised=asked.ballot)
        return Promise(asked.base, asked.ballot, self._state.accepted)

    def propose(self, ring: Ring, asked: Propose, terms: Terms) -> Accept | Reject:
        proposal = asked.proposal
        refused = self._refused(ring, asked, proposal.base)
        if refused is not None:
            return refused
        mine = self._state.accepted
        if mine is not None and mine.ballot == asked.ballot:
            assert mine.proposal == proposal, "a ballot is of one proposal"
            return Accept(proposal.op, proposal.base, asked.ballot)
        # What others judged may be decided: what this node thinks of it counts no more.
        found = flaw(ring, proposal, msgspec.structs.replace(terms, factors={}) if asked.found else terms)
        if found:
            return rejection(asked, ring, Why.ILLEGAL, found, self._state.promised)
        self._state = VotedState(self._state.base, asked.ballot, Accepted(asked.ballot, proposal))
        return Accept(proposal.op, proposal.base, asked.ballot)

    def moved(self, ring: Ring) -> None:
        """The ring is another one: nothing was promised on it."""
        if self._state.base != ring.fingerprint:
            self._state = VotedState(ring.fingerprint)

    def _refused(self, ring: Ring, asked: Prepare | Propose, base: bytes) -> Reject | None:
        promised = self._state.promised
        assert self._state.base == ring.fingerprint, "votes are of the ring that the node has"
        if base != ring.fingerprint:
            return rejection(asked, ring, Why.STALE, f"{self._node} has {ring.title()}", promised)
        if self._node not in ring.voters:
            return rejection(asked, ring, Why.NO_VOICE, f"{self._node} is no member", promised)
        if asked.ballot < promised:
            text = f"{self._node} promised ballot {promised.number} of {promised.node}"
            return rejection(asked, ring, Why.BALLOT, text, promised)
        return None


class Phase(enum.StrEnum):
    IDLE = "idle"
    PREPARING = "preparing"
    PROPOSING = "proposing"
    #: Another's ballot was higher: the next attempt comes later.
    WAITING = "waiting"


class BallotInitiator:
    """The initiator of one node, which sees one thing through at a time. It keeps nothing over a restart: the
    acceptors have all there is to know."""

    def __init__(self, node: str, launch: int) -> None:
        self._node = node
        self._launch = launch
        self._phase = Phase.IDLE
        self._ring: Ring | None = None
        self._own: Proposal | None = None
        self._chosen: Proposal | None = None
        self._found = False
        self._ballot = NO_BALLOT
        self._number = 0
        self._attempts = 0
        self._answers: dict[str, Accepted | None] = {}
        self._refusals: dict[str, str] = {}
        self._deadline_ms = 0
        self._again_ms = 0
        #: Its own proposal was sent to be accepted, so it may be decided although nobody here knows.
        self.sent = False

    @property
    def phase(self) -> Phase:
        return self._phase

    @property
    def proposing(self) -> Proposal | None:
        return self._own if self._phase is not Phase.IDLE else None

    @property
    def missing(self) -> tuple[str, ...]:
        if self._ring is None or self._phase not in (Phase.PREPARING, Phase.PROPOSING):
            return ()
        return tuple(node for node in self._ring.voters if node not in self._answers)

    def validate(self) -> None:
        assert (self._phase is Phase.IDLE) == (self._own is None), "who is idle wants nothing"
        if self._ring is None or self._own is None:
            return
        assert self._own.base == self._ring.fingerprint, "what is wanted is of this ring"
        assert set(self._answers) <= set(self._ring.voters), "only members are counted"
        proposes = self._phase is Phase.PROPOSING
        assert (self._chosen is not None) == proposes, "after promises of a majority there is one proposal"
        counted = proposes or (self._phase is Phase.PREPARING and not self._is_patient)
        assert not counted or len(self._answers) < majority(self._ring), "who has a majority goes on"

    def begin(self, ring: Ring, proposal: Proposal, now_ms: int) -> Prepare:
        """To all members."""
        assert self._phase is Phase.IDLE and proposal.base == ring.fingerprint, "one proposal, of this ring"
        self._ring, self._own, self.sent, self._attempts = ring, proposal, False, 0
        self._deadline_ms = now_ms + RING_PROPOSAL_MS
        return self._prepare(now_ms)

    def promised(self, peer: str, answer: Promise, now_ms: int) -> Propose | None:
        """What to propose to all members, when a majority has promised."""
        if not self._counts(peer, answer.base, answer.ballot, Phase.PREPARING):
            return None
        assert self._ring is not None and self._own is not None
        self._answers[peer] = answer.accepted
        wanted = len(self._ring.voters) if self._is_patient else majority(self._ring)
        return self._propose(now_ms) if len(self._answers) >= wanted else None

    def accepted(self, peer: str, answer: Accept) -> Proposal | None:
        """The proposal when a majority has accepted it: it is decided."""
        if not self._counts(peer, answer.base, answer.ballot, Phase.PROPOSING):
            return None
        assert self._ring is not None and self._chosen is not None and answer.op == self._chosen.op
        self._answers[peer] = None
        return self._chosen if len(self._answers) >= majority(self._ring) else None

    def rejected(self, peer: str, answer: Reject, now_ms: int) -> str:
        """Why it cannot be, when so many refuse that no majority is left; "" while it may be."""
        if answer.why is Why.BALLOT:
            self._number = max(self._number, answer.promised.number)
        if answer.ballot != self._ballot or self._ring is None or answer.base != self._ring.fingerprint:
            return ""
        if answer.why is Why.BALLOT and self._phase in (Phase.PREPARING, Phase.PROPOSING):
            self._phase, self._chosen, self._answers = Phase.WAITING, None, {}
            self._again_ms = now_ms + self._backoff_ms()
        elif answer.why is Why.ILLEGAL and self._phase is Phase.PROPOSING and peer in self._ring.voters:
            self._refusals[peer] = answer.text
            if len(self._ring.voters) - len(self._refusals) < majority(self._ring):
                return f"{peer} refuses: {answer.text}"
        return ""

    def late(self, now_ms: int) -> bool:
        return self._phase is not Phase.IDLE and now_ms >= self._deadline_ms

    def again(self, now_ms: int) -> tuple[Prepare | Propose | None, tuple[str, ...]]:
        """What to send now, and to whom: once more, or the next attempt."""
        if self._phase is Phase.IDLE or self._ring is None or now_ms < self._again_ms:
            return None, ()
        if self._phase is Phase.WAITING:
            return self._prepare(now_ms), self._ring.voters
        self._again_ms = now_ms + RING_RETRY_MS
        if self._phase is Phase.PREPARING and len(self._answers) >= majority(self._ring):
            return self._propose(now_ms), self._ring.voters
        if self._phase is Phase.PREPARING:
            return Prepare(self._ring.fingerprint, self._ballot), self.missing
        assert self._chosen is not None
        return Propose(self._chosen, self._ballot, self._found), self.missing

    def end(self) -> None:
        self._phase, self._ring, self._own, self._chosen = Phase.IDLE, None, None, None
        self._answers, self._refusals = {}, {}

    def _prepare(self, now_ms: int) -> Prepare:
        assert self._ring is not None
        self._number += 1
        self._attempts += 1
        self._ballot = Ballot(self._number, self._node, self._launch)
        assert self._ballot > NO_BALLOT, "ballots grow"
        self._phase, self._chosen, self._answers, self._refusals = Phase.PREPARING, None, {}, {}
        self._again_ms = now_ms + RING_RETRY_MS
        return Prepare(self._ring.fingerprint, self._ballot)

    @property
    def _is_patient(self) -> bool:
        """Whoever ends a ring without a change waits for all promises a while: the more it has, the more
        often it can tell that what others accepted is not decided."""
        return self._own is not None and self._own.is_end

    def _propose(self, now_ms: int) -> Propose:
        """A majority has promised."""
        assert self._ring is not None and self._own is not None and len(self._answers) >= majority(self._ring)
        taken = [accepted for accepted in self._answers.values() if accepted is not None]
        newest = max(taken, key=lambda accepted: accepted.ballot, default=None)
        self._found = newest is not None and not (self._is_patient and self._is_open(newest.proposal, taken))
        self._chosen = newest.proposal if newest is not None and self._found else self._own
        self.sent = self.sent or self._chosen == self._own
        self._phase, self._answers, self._refusals = Phase.PROPOSING, {}, {}
        self._again_ms = now_ms + RING_RETRY_MS
        return Propose(self._chosen, self._ballot, self._found)

    def _is_open(self, newest: Proposal, taken: Sequence[Accepted]) -> bool:
        """Whether nothing can be decided: had another proposal been, under a lower ballot, `newest` would be
        that one; and it is not, when those that took it and those that did not answer are no majority."""
        assert self._ring is not None
        holders = sum(accepted.proposal == newest for accepted in taken)
        silent = len(self._ring.voters) - len(self._answers)
        return holders + silent < majority(self._ring)

    def _counts(self, peer: str, base: bytes, ballot: Ballot, phase: Phase) -> bool:
        return (
            self._phase is phase
            and self._ring is not None
            and base == self._ring.fingerprint
            and ballot == self._ballot
            and peer in self._ring.voters
        )

    def _backoff_ms(self) -> int:
        assert self._ring is not None
        voters = self._ring.voters
        place = voters.index(self._node) + 1 if self._node in voters else len(voters) + 1
        return min(RING_BACKOFF_MS * place * self._attempts, RING_BACKOFF_MS_MAX)
