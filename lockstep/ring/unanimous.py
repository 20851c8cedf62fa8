"""All members accept: the acceptor's promise and the initiator's decision.

Invariant: an acceptor has promised one proposal at most, and a promise outlives restarts; it ends when the
ring is another one, or by an abort. The initiator decides once: commit when every member of the ring it
proposed on has accepted, abort before; what it has decided it does not take back, and a restart before the
decision is an abort. So on one ring at most one change is committed, as long as only initiators abort. An
operator's abort at an acceptor gives a promise back that the initiator may have counted: if the commit is
hidden, because the initiator is cut off, another change can be committed on the same ring. `Promises.moved`
raises the alarm where that shows.
"""

from __future__ import annotations

import enum

import msgspec

from lockstep.ring.limits import RING_ASK_MS, RING_DEAD_MAX, RING_PROPOSAL_MS, RING_RETRY_MS
from lockstep.ring.messages import NO_BALLOT, Accept, Proposal, Propose, Reject, Terms, Why, flaw, rejection
from lockstep.ring.ring import Delta, Ring


class PromisedState(msgspec.Struct, frozen=True, array_like=True):
    """What an acceptor keeps: written before anything is said of it."""

    promise: Proposal | None = None
    dead: tuple[str, ...] = ()


class Promises:
    """The acceptor of one node."""

    def __init__(self, node: str, state: PromisedState) -> None:
        self._node = node
        self._state = state
        self._asked_ms = 0

    @property
    def state(self) -> PromisedState:
        return self._state

    @property
    def pending(self) -> Proposal | None:
        return self._state.promise

    def validate(self) -> None:
        assert len(self._state.dead) <= RING_DEAD_MAX, "the oldest is forgotten"
        promise = self._state.promise
        if promise is not None:
            promise.validate()
            assert promise.op not in self._state.dead, "what was aborted is not promised"

    def propose(self, ring: Ring, asked: Propose, terms: Terms, now_ms: int) -> Accept | Reject:
        proposal, promise = asked.proposal, self._state.promise
        if proposal.op in self._state.dead:
            return rejection(asked, ring, Why.ABORTED, "it was aborted", NO_BALLOT)
        if proposal.base != ring.fingerprint:
            return rejection(asked, ring, Why.STALE, f"{self._node} has {ring.title()}", NO_BALLOT)
        if self._node not in ring.voters:
            return rejection(asked, ring, Why.NO_VOICE, f"{self._node} is no member", NO_BALLOT)
        if promise is not None and promise.op != proposal.op:
            text = f"{self._node} promised {promise.op} of {promise.initiator}"
            return rejection(asked, ring, Why.BUSY, text, NO_BALLOT)
        found = flaw(ring, proposal, terms)
        if found:
            return rejection(asked, ring, Why.ILLEGAL, found, NO_BALLOT)
        if promise is None:
            self._state = PromisedState(proposal, self._state.dead)
            self._asked_ms = now_ms
        assert self._state.promise == proposal, "one proposal is promised"
        return Accept(proposal.op, proposal.base)

    def abort(self, op: str) -> bool:
        """Whether a promise was given back; a late copy of the proposal is refused from now on."""
        promise, dead = self._state.promise, self._state.dead
        if op not in dead:
            dead = (*dead, op)[-RING_DEAD_MAX:]
        held = promise is not None and promise.op == op
        self._state = PromisedState(None if held else promise, dead)
        assert self.pending is None or self.pending.op != op, "its promise is given back"
        return held

    def moved(self, before: Ring, ring: Ring, delta: Delta | None) -> str:
        """The ring is another one: promises on the old one are void. Returns what to alarm of: a change of
        the ring that this member had a voice on, and had not promised."""
        promise = self._state.promise
        if promise is None or promise.base != ring.fingerprint:
            self._state = PromisedState(None, self._state.dead)
        assert self.pending is None or self.pending.base == ring.fingerprint, (
            "a promise is of the ring there is"
        )
        if delta is None or delta.base != before.fingerprint or self._node not in before.voters:
            return ""
        if promise is not None and promise.op == delta.op:
            return ""
        held = f"had promised {promise.op}" if promise is not None else "had promised nothing"
        return f"{delta.op} was committed on {before.title()}, and {self._node} {held}"

    def to_ask(self, now_ms: int) -> Proposal | None:
        """Of what to ask the initiator now."""
        if self._state.promise is None or now_ms < self._asked_ms + RING_ASK_MS:
            return None
        self._asked_ms = now_ms
        return self._state.promise


class Stage(enum.StrEnum):
    PROPOSING = "proposing"
    COMMITTED = "committed"
    ABORTED = "aborted"


class OwnProposal(msgspec.Struct, frozen=True, array_like=True):
    """What an initiator keeps of the newest thing it proposed. `cohort`: who must accept."""

    proposal: Proposal
    cohort: tuple[str, ...]
    stage: Stage


class Initiator:
    """The initiator of one node, which proposes one thing at a time."""

    def __init__(self, node: str, state: OwnProposal | None) -> None:
        self._node = node
        if state is not None and state.stage is Stage.PROPOSING:
            state = msgspec.structs.replace(state, stage=Stage.ABORTED)
        self._state = state
        assert self.proposing is None, "a restart before the decision is an abort"
        self._accepted: dict[str, None] = {}
        self._deadline_ms = 0
        self._again_ms = 0
        self.reason = ""

    @property
    def state(self) -> OwnProposal | None:
        return self._state

    @property
    def proposing(self) -> Proposal | None:
        state = self._state
        return state.proposal if state is not None and state.stage is Stage.PROPOSING else None

    @property
    def missing(self) -> tuple[str, ...]:
        """Whose acceptance is waited for."""
        if self._state is None or self._state.stage is not Stage.PROPOSING:
            return ()
        return tuple(node for node in self._state.cohort if node not in self._accepted)

    def validate(self) -> None:
        state = self._state
        if state is None:
            return
        state.proposal.validate()
        assert state.cohort and set(self._accepted) <= set(state.cohort), "only members are counted"
        proposing = state.stage is Stage.PROPOSING
        assert not proposing or len(self._accepted) < len(state.cohort), "who has all has decided"

    def begin(self, ring: Ring, proposal: Proposal, now_ms: int) -> tuple[str, ...]:
        """Whom to ask."""
        assert self.proposing is None and proposal.base == ring.fingerprint, "one proposal, of this ring"
        self._state = OwnProposal(proposal, ring.voters, Stage.PROPOSING)
        self._accepted, self.reason = {}, ""
        self._deadline_ms, self._again_ms = now_ms + RING_PROPOSAL_MS, now_ms + RING_RETRY_MS
        return ring.voters

    def accepted(self, peer: str, op: str) -> Proposal | None:
        """The proposal when this acceptance was the last one: it is committed, and not taken back."""
        proposal = self.proposing
        if proposal is None or self._state is None or proposal.op != op or peer not in self._state.cohort:
            return None
        self._accepted[peer] = None
        if len(self._accepted) < len(self._state.cohort):
            return None
        assert not self.missing, "every member has accepted it"
        self._state = msgspec.structs.replace(self._state, stage=Stage.COMMITTED)
        return proposal

    def rejected(self, peer: str, op: str, why: Why, text: str) -> bool:
        """Whether it is aborted with that."""
        if self.proposing is None or self.proposing.op != op:
            return False
        return self.abort(op, f"{peer} refuses ({why}): {text}")

    def abort(self, op: str, reason: str) -> bool:
        """False when it is not, or no more, being proposed: what is committed stays so."""
        if self.proposing is None or self.proposing.op != op or self._state is None:
            return False
        self._state = msgspec.structs.replace(self._state, stage=Stage.ABORTED)
        self.reason = reason
        assert self.proposing is None, "what is aborted is proposed no more"
        return True

    def late(self, now_ms: int) -> bool:
        """Whether it is time to give up."""
        return self.proposing is not None and now_ms >= self._deadline_ms

    def again(self, now_ms: int) -> tuple[str, ...]:
        """Whom to ask again now."""
        if self.proposing is None or now_ms < self._again_ms:
            return ()
        self._again_ms = now_ms + RING_RETRY_MS
        missing = self.missing
        assert missing, "who has all has decided"
        return missing
