"""Bugs planted in the ring's machines, to prove that its checks bite.

Invariant: nothing in the product knows of them; each replaces named attributes for the time of one run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from lockstep.ring import ballots, ring, unanimous
from lockstep.ring.ballots import BallotInitiator, VotedState, Votes
from lockstep.ring.member import Effects, Kept, RingMember
from lockstep.ring.messages import NO_BALLOT, Accept, Accepted, Propose, Reject, Why
from lockstep.ring.ring import Mode, Ring, Status
from lockstep.ring.unanimous import Initiator, PromisedState, Promises
from lockstep.sim.plant import Plant, Planted, replaced


def _forgetting(kept: Kept) -> Kept:
    return msgspec.structs.replace(kept, promised=PromisedState())


def _voteless(kept: Kept) -> Kept:
    return msgspec.structs.replace(kept, voted=VotedState(kept.ring.fingerprint))


def _writes(change: Any) -> Plant:
    """What a member wants written is changed on its way."""

    @contextlib.contextmanager
    def planted() -> Iterator[None]:
        plain = RingMember._effects

        def effects(self: RingMember) -> Effects:
            found = plain(self)
            return found if found.kept is None else msgspec.structs.replace(found, kept=change(found.kept))

        with replaced((RingMember, "_effects", effects)):
            yield

    return planted


@contextlib.contextmanager
def _promises_twice() -> Iterator[None]:
    plain = Promises.propose

    def propose(
        self: Promises, on: Ring, asked: Propose, factors: Mapping[str, int], now_ms: int
    ) -> Accept | Reject:
        if self.pending is not None and self.pending.base == asked.proposal.base == on.fingerprint:
            self._state = PromisedState(None, self.state.dead)
        return plain(self, on, asked, factors, now_ms)

    with replaced((Promises, "propose", propose)):
        yield


@contextlib.contextmanager
def _decides_with_most() -> Iterator[None]:
    plain = Initiator.accepted

    def accepted(self: Initiator, peer: str, op: str) -> Any:
        state = self.state
        if state is not None and len(self.missing) <= len(state.cohort) // 2 and peer in self.missing:
            for other in self.missing:
                self._accepted[other] = None
            self._accepted.pop(peer)
        return plain(self, peer, op)

    with replaced((Initiator, "accepted", accepted)):
        yield


@contextlib.contextmanager
def _goes_on_after_abort() -> Iterator[None]:
    plain = RingMember._tell_outcome

    def tell(self: RingMember, sender: str, op: str, base: bytes) -> None:
        state = self._initiator.state
        if state is not None and state.proposal.op == op and base == self.ring.fingerprint:
            self._initiator._state = msgspec.structs.replace(state, stage=unanimous.Stage.COMMITTED)
            self._decided(state.proposal)
        else:
            plain(self, sender, op, base)

    with replaced((RingMember, "_tell_outcome", tell)):
        yield


@contextlib.contextmanager
def _never_asks() -> Iterator[None]:
    with replaced((Promises, "to_ask", lambda self, now_ms: None)):
        yield


@contextlib.contextmanager
def _half_is_enough() -> Iterator[None]:
    with replaced((ballots, "majority", lambda on: max(1, len(on.voters) // 2))):
        yield


@contextlib.contextmanager
def _proposes_its_own() -> Iterator[None]:
    with replaced((BallotInitiator, "_is_patient", True), (BallotInitiator, "_is_open", lambda *_: True)):
        yield


@contextlib.contextmanager
def _takes_lower_ballots() -> Iterator[None]:
    plain = Votes.propose

    def propose(self: Votes, on: Ring, asked: Propose, factors: Mapping[str, int]) -> Accept | Reject:
        answer = plain(self, on, asked, factors)
        if isinstance(answer, Reject) and answer.why is Why.BALLOT:
            self._state = VotedState(self.state.base, asked.ballot, Accepted(asked.ballot, asked.proposal))
            return Accept(asked.proposal.op, asked.proposal.base, asked.ballot)
        return answer

    with replaced((Votes, "propose", propose)):
        yield


@contextlib.contextmanager
def _abort_is_local() -> Iterator[None]:
    """An operator's abort takes the vote back, as a promise where all must accept."""

    def abort(self: RingMember, op: str, base: bytes, now_ms: int) -> tuple[str, Effects]:
        if self._votes.pending is not None and self._votes.pending.op == op:
            self._votes._state = VotedState(base, NO_BALLOT)
        return "", self._effects()

    with replaced((RingMember, "abort", abort)):
        yield


@contextlib.contextmanager
def _drops_tombstones() -> Iterator[None]:
    plain = ring.merge

    def merge(one: Ring, other: Ring) -> Ring:
        found = plain(one, other)
        kept = tuple(member for member in found.members if member.status is not Status.LEFT)
        return Ring(found.mode, found.sequence, kept)

    with replaced((ring, "merge", merge)):
        yield


@contextlib.contextmanager
def _counts_no_sequence() -> Iterator[None]:
    """The fingerprint is of who owns what: a ring that looks as one before has its fingerprint."""
    plain = ring._fingerprint

    def fingerprint(of: Ring) -> bytes:
        members = tuple(
            msgspec.structs.replace(member, sequence=1, op="")
            for member in of.members
            if member.status is not Status.LEFT
        )
        return plain(Ring(of.mode, 1, members))

    with replaced((ring, "_fingerprint", fingerprint)):
        yield


PLANTS: Final[dict[str, Planted]] = {
    one.name: one
    for one in (
        Planted("forgets-promises", "a restart forgets promises", Mode.UNANIMOUS, _writes(_forgetting)),
        Planted("promises-twice", "an acceptor promises the newest", Mode.UNANIMOUS, _promises_twice),
        Planted("most-is-all", "an initiator commits with most", Mode.UNANIMOUS, _decides_with_most),
        Planted("commits-after-abort", "an aborted one is committed", Mode.UNANIMOUS, _goes_on_after_abort),
        Planted("never-asks", "a promise outlives its initiator's abort", Mode.UNANIMOUS, _never_asks),
        Planted("forgets-votes", "a restart forgets votes", Mode.QUORUM, _writes(_voteless)),
        Planted("half-is-enough", "half of the members decide", Mode.QUORUM, _half_is_enough),
        Planted("own-first", "what was accepted is not finished", Mode.QUORUM, _proposes_its_own),
        Planted("lower-ballots", "an acceptor takes lower ballots", Mode.QUORUM, _takes_lower_ballots),
        Planted("abort-is-local", "an abort takes a vote back", Mode.QUORUM, _abort_is_local),
        Planted("no-tombstones", "who is gone is dropped", Mode.QUORUM, _drops_tombstones),
        Planted("content-only", "a fingerprint returns", Mode.QUORUM, _counts_no_sequence),
    )
}
