"""One decision after another on one partition: what an acceptor does, what a proposer may do, and the phases
of one conditional request or serial read at its coordinator, as a table.

Invariant: An acceptor that promised a ballot takes nothing under an older one. Two ballots of one time never
both pass an acceptor, so every decided proposal has a time of its own, above those decided before. A value is
proposed only when all that was decided before is known to the acceptors that promised. A proposal carries the
origins of those decided before it, so that whoever lost sight of its own learns what became of it. A proposal
that is ended without effect is in no such list: for its proposer it is as if it had never been decided. A
request that proposed something reaches its end through `applying`, or by losing sight of it; what is answered
without having written was judged right after a promise.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

import msgspec

from lockstep.values.ids import NodeId
from lockstep.values.limits import BALLOT_CHAIN_MAX


class Ballot(msgspec.Struct, frozen=True, array_like=True, order=True, gc=False):
    """`time_us` is above every time that its request chose before, `draw` tells requests apart that chose
    one time."""

    time_us: int
    draw: int


#: Before every ballot.
NO_BALLOT = Ballot(0, 0)


class Proposal(msgspec.Struct, frozen=True, array_like=True):
    """`origin` is the ballot under which the value was proposed first: whoever finishes it keeps that.
    `chain`: origins of the newest decided before it, the oldest first. `value` is empty of one that is ended
    without effect, or whose rows are where they belong; then it is in its own chain."""

    ballot: Ballot
    origin: Ballot
    value: bytes
    chain: tuple[Ballot, ...] = ()

    def under(self, ballot: Ballot) -> Proposal:
        assert ballot >= self.ballot, "ballots grow"
        return Proposal(ballot, self.origin, self.value, self.chain)

    def voided(self) -> Proposal:
        return Proposal(self.ballot, self.origin, b"", self.chain)

    def made_good(self) -> Proposal:
        return Proposal(self.ballot, self.origin, b"", decided(self))


class Acceptor(msgspec.Struct, frozen=True, array_like=True):
    """What one replica keeps of a partition. Each part only ever moves to a later ballot."""

    promised: Ballot = NO_BALLOT
    accepted: Proposal | None = None
    committed: Proposal | None = None

    @property
    def in_progress(self) -> Proposal | None:
        """What was accepted here and is not known to be decided."""
        accepted, committed = self.accepted, self.committed
        if accepted is None or (committed is not None and accepted.ballot <= committed.ballot):
            return None
        return accepted

    @property
    def floor(self) -> Ballot:
        """What a new ballot must be later than."""
        if self.committed is not None and self.committed.ballot > self.promised:
            return self.committed.ballot
        return self.promised


def prepare(state: Acceptor, ballot: Ballot) -> tuple[Acceptor, bool]:
    """The state after a request for a promise, and whether it was given. Asked again for the newest promise,
    an acceptor repeats it."""
    assert ballot > NO_BALLOT, "a ballot of nobody"
    floor = state.floor
    if ballot.time_us > floor.time_us:
        return msgspec.structs.replace(state, promised=ballot), True
    return state, ballot == floor == state.promised


def accept(state: Acceptor, proposal: Proposal) -> tuple[Acceptor, bool]:
    """The state after a proposal, and whether it was accepted."""
    ballot, floor = proposal.ballot, state.floor
    assert proposal.origin <= ballot, "a proposal is older than its origin"
    if ballot == floor or ballot.time_us > floor.time_us:
        return msgspec.structs.replace(state, promised=ballot, accepted=proposal), True
    return state, False


def decide(state: Acceptor, proposal: Proposal) -> tuple[Acceptor, bool]:
    """As `accept`, of a proposal that is decided when it is accepted here: others have done so."""
    after, accepted = accept(state, proposal)
    if not accepted:
        return state, False
    return Acceptor(after.promised, state.accepted, proposal), True


def commit(state: Acceptor, proposal: Proposal) -> Acceptor:
    """The state after hearing that a proposal was decided; the same when it says nothing new."""
    assert proposal.ballot > NO_BALLOT, "a ballot of nobody"
    known = state.committed
    if known is not None and known.ballot >= proposal.ballot:
        return state
    return msgspec.structs.replace(state, committed=proposal)


class Promises(msgspec.Struct, frozen=True):
    """What a quorum of promises says. `lacking`: acceptors that do not know what was decided last."""

    in_progress: Proposal | None
    committed: Proposal | None
    lacking: tuple[NodeId, ...]


def judge(states: Mapping[NodeId, Acceptor]) -> Promises:
    """`states`: of each acceptor of a quorum, by node, as it promised."""
    assert states, "a quorum is somebody"
    in_progress: Proposal | None = None
    committed: Proposal | None = None
    for state in states.values():
        if state.committed is not None and (committed is None or state.committed.ballot > committed.ballot):
            committed = state.committed
        found = state.accepted
        if found is not None and (in_progress is None or found.ballot > in_progress.ballot):
            in_progress = found
    if in_progress is not None and committed is not None and in_progress.ballot <= committed.ballot:
        in_progress = None
    lacking = () if committed is None else tuple(n for n, state in states.items() if _lacks(state, committed))
    return Promises(in_progress, committed, lacking)


def _lacks(state: Acceptor, committed: Proposal) -> bool:
    return state.committed is None or state.committed.ballot < committed.ballot


def decided(committed: Proposal | None) -> tuple[Ballot, ...]:
    """Origins of the newest decided proposals, the oldest first."""
    if committed is None:
        return ()
    return (*committed.chain, committed.origin)[-BALLOT_CHAIN_MAX:] if committed.value else committed.chain


def propose(ballot: Ballot, value: bytes, committed: Proposal | None) -> Proposal:
    """A value of one's own, to be decided behind `committed`."""
    assert committed is None or ballot > committed.ballot, "ballots grow"
    return Proposal(ballot, ballot, value, decided(committed))


class Fate(enum.StrEnum):
    """What became of a proposal of one's own whose round did not end."""

    DECIDED = "decided"
    #: Nothing was decided since: it may be proposed again as it is.
    OPEN = "open"
    #: Another one took its place: it never takes effect, and the request may be begun anew.
    LOST = "lost"
    #: So many were decided since that nobody knows.
    UNKNOWN = "unknown"


def fate(own: Proposal, committed: Proposal | None) -> Fate:
    """Judged from a quorum of promises without anything in progress; `committed` is the newest of them."""
    chain = decided(committed)
    assert len(chain) <= BALLOT_CHAIN_MAX, "a chain is as long as its proposer made it"
    if own.origin in chain:
        return Fate.DECIDED
    base = own.chain[-1] if own.chain else None
    newest = chain[-1] if chain else None
    if newest == base:
        return Fate.OPEN
    if base in chain or (base is None and len(chain) < BALLOT_CHAIN_MAX):
        return Fate.LOST
    return Fate.UNKNOWN


class Phase(enum.StrEnum):
    #: A quorum is asked for promises, and what it holds.
    ASKING = "asking"
    #: What another request left in progress is decided first.
    FINISHING = "finishing"
    #: What was decided last is brought to a quorum.
    BRINGING = "bringing"
    #: The rows are judged; what became of an own proposal is.
    JUDGING = "judging"
    PROPOSING = "proposing"
    #: What was decided is applied at the level of the write.
    APPLYING = "applying"
    ENDED = "ended"


class Happened(enum.StrEnum):
    #: Another ballot was first, or the replicas changed.
    AGAIN = "again"
    IN_PROGRESS = "in progress"
    LACKING = "lacking"
    KNOWN = "known"
    PROPOSES = "proposes"
    ANSWERED = "answered"
    DECIDED = "decided"
    HELD = "held"


STEPS: Final[Mapping[Phase, Mapping[Happened, Phase]]] = {
    Phase.ASKING: {
        Happened.AGAIN: Phase.ASKING,
        Happened.IN_PROGRESS: Phase.FINISHING,
        Happened.LACKING: Phase.BRINGING,
        Happened.KNOWN: Phase.JUDGING,
    },
    Phase.FINISHING: {Happened.AGAIN: Phase.ASKING},
    Phase.BRINGING: {Happened.AGAIN: Phase.ASKING, Happened.KNOWN: Phase.JUDGING},
    Phase.JUDGING: {
        Happened.ANSWERED: Phase.ENDED,
        Happened.PROPOSES: Phase.PROPOSING,
        Happened.DECIDED: Phase.APPLYING,
    },
    Phase.PROPOSING: {Happened.AGAIN: Phase.ASKING, Happened.DECIDED: Phase.APPLYING},
    Phase.APPLYING: {Happened.AGAIN: Phase.APPLYING, Happened.HELD: Phase.ENDED},
    Phase.ENDED: {},
}


def mermaid() -> str:
    """The table as a Mermaid state diagram."""
    lines = ["stateDiagram-v2", f"  [*] --> {Phase.ASKING}"]
    for phase, steps in STEPS.items():
        lines += [f"  {phase} --> {after} : {happened}" for happened, after in steps.items()]
    return "\n".join([*lines, f"  {Phase.ENDED} --> [*]"]) + "\n"
