"""One node of a ring without a log: its acceptor, its initiator and its gossip around the ring that it has.

Invariant: what a step changes of `Kept` is written before what the step says is sent, so nobody hears of a
promise, a vote or a decision that a crash can undo. The ring only goes forward, and every part hears of it in
the same step.
"""

from __future__ import annotations

import enum
import operator
from collections.abc import Mapping, Sequence

import msgspec

from lockstep.ring.ballots import BallotInitiator, VotedState, Votes
from lockstep.ring.changes import Change, problem
from lockstep.ring.limits import RING_MESSAGES_MAX
from lockstep.ring.messages import (
    Abort,
    Accept,
    Ask,
    Deltas,
    Judge,
    Message,
    Prepare,
    Promise,
    Proposal,
    Propose,
    Reject,
    Summary,
    Terms,
    Whole,
    Why,
    proposal_of,
)
from lockstep.ring.ring import Delta, Mode, Ring, applied, contradictions, merge, outcome
from lockstep.ring.spreading import Draws, Spreader
from lockstep.ring.unanimous import Initiator, OwnProposal, PromisedState, Promises, Stage


class Kept(msgspec.Struct, frozen=True, array_like=True):
    """What a node keeps over a restart. `launch` counts its starts."""

    ring: Ring
    launch: int
    promised: PromisedState
    own: OwnProposal | None
    voted: VotedState


_FIELDS = operator.attrgetter(*Kept.__struct_fields__)


def first_kept(ring: Ring) -> Kept:
    """Of a node that was never started."""
    return Kept(ring, 0, PromisedState(), None, VotedState(ring.fingerprint))


class Outcome(enum.StrEnum):
    COMMITTED = "committed"
    #: It has no effect and never will.
    ABORTED = "aborted"
    #: It was sent out and not seen to be decided: the ring tells in the end.
    UNKNOWN = "unknown"


class Ended(msgspec.Struct, frozen=True):
    """How a proposal of this node ended."""

    op: str
    outcome: Outcome
    text: str


class Effects(msgspec.Struct, frozen=True):
    """To be done in this order: write `decided`, then `kept` if there is one, then send `messages`. `alarms`:
    what shows that two changes were agreed on one ring. `decided`: what this step found to be agreed on."""

    kept: Kept | None
    messages: tuple[tuple[str, Message], ...]
    alarms: tuple[str, ...]
    ended: tuple[Ended, ...]
    decided: tuple[Delta, ...] = ()


class Standing(msgspec.Struct, frozen=True):
    """Where a node stands, for people. `missing`: whose answer its own proposal waits for."""

    ring: Ring
    pending: Proposal | None
    proposing: Proposal | None
    missing: tuple[str, ...]
    laggards: tuple[str, ...]


class RingMember:
    """`kept` is of the last run, `factors` how many owners each data centre needs at least. `judge` is asked
    of what proposals carry."""

    def __init__(
        self,
        node: str,
        kept: Kept,
        seeds: Sequence[str],
        factors: Mapping[str, int],
        now_ms: int,
        judge: Judge | None = None,
    ) -> None:
        self._node = node
        self._ring = kept.ring
        self._launch = kept.launch + 1
        self._terms = Terms(dict(factors), judge)
        self._promises = Promises(node, kept.promised)
        self._initiator = Initiator(node, kept.own)
        self._votes = Votes(node, kept.voted)
        self._ballots = BallotInitiator(node, self._launch)
        self._spreader = Spreader(node, seeds, now_ms)
        self._kept = kept
        self._operations = 0
        self._inbox: list[Message] = []
        self._messages: list[tuple[str, Message]] = []
        self._alarms: list[str] = []
        self._ended: list[Ended] = []
        self._agreed: list[Delta] = []

    # -- what is known -------------------------------------------------------------------------------

    @property
    def ring(self) -> Ring:
        return self._ring

    @property
    def unanimous(self) -> bool:
        return self._ring.mode is Mode.UNANIMOUS

    @property
    def standing(self) -> Standing:
        return Standing(
            self._ring,
            self._pending,
            self._proposing,
            self._initiator.missing if self.unanimous else self._ballots.missing,
            self._spreader.laggards(self._ring),
        )

    @property
    def _pending(self) -> Proposal | None:
        return self._promises.pending if self.unanimous else self._votes.pending

    @property
    def _proposing(self) -> Proposal | None:
        return self._initiator.proposing if self.unanimous else self._ballots.proposing

    def validate(self) -> None:
        for machine in (self._promises, self._initiator, self._votes, self._ballots, self._spreader):
            machine.validate()
        assert not self._inbox and not self._messages, "a step is done when it returns"
        assert self._kept.ring is self._ring and self._kept.launch == self._launch, "what is, is written"
        assert self._votes.state.base == self._ring.fingerprint, "votes are of this ring"
        promise = self._promises.pending
        assert promise is None or promise.base == self._ring.fingerprint, "a promise is of this ring"

    # -- steps ---------------------------------------------------------------------------------------

    def start(self) -> Effects:
        """The first step: that it was started is written before anything else."""
        state = self._initiator.state
        if self.unanimous and state is not None and state.stage is Stage.COMMITTED:
            self._tell_seeds()
        return self._effects()

    def refusal(self, changes: Sequence[Change]) -> str:
        """Why the changes would not be proposed; "" when they would."""
        if self._proposing is not None:
            return f"{self._node} is proposing another change"
        return problem(self._ring, changes, self._terms.factors)

    def request(self, changes: Sequence[Change], now_ms: int) -> tuple[str, Effects]:
        """Propose changes that `refusal` finds nothing wrong with; the name of the proposal."""
        assert changes and not self.refusal(changes), "a request is judged first"
        proposal = proposal_of(self._ring, self._new_op(), self._node, changes)
        self._begin(proposal, now_ms)
        return proposal.op, self._effects()

    def offer(self, delta: Delta, now_ms: int) -> Effects:
        """Propose what the delta carries; its name is the delta's. The caller has judged it."""
        assert delta.carried and self.standing.proposing is None, "one proposal, which carries something"
        self._begin(Proposal(delta.op, self._node, (), delta), now_ms)
        return self._effects()

    def finish(self, now_ms: int) -> Effects:
        """Propose what this node has accepted and knows no end of: it may be decided, and nobody told."""
        pending = self._votes.pending
        assert pending is not None and self._ballots.proposing is None, "something is to be finished"
        self._begin(pending, now_ms)
        return self._effects()

    def follow(self, delta: Delta, now_ms: int) -> Effects:
        """The change was agreed on, and is written here already."""
        assert delta.carried and delta.history, "what was written here came with the change"
        if delta.base == self._ring.fingerprint:
            self._move(applied(self._ring, delta), delta)
        assert self._ring.sequence >= delta.sequence, "the ring that was agreed on is here"
        self._drain(now_ms)
        return self._effects()

    def abort(self, op: str, base: bytes, now_ms: int, ending: Proposal | None = None) -> tuple[str, Effects]:
        """An operator ends a proposal of the ring `base` at this node; "" or why not. `ending`: what ends a
        ring whose changes carry something.

        Where all must accept, the promise of this node is given back, whatever its initiator has decided.
        Where a majority decides, this node proposes to end the ring without a change, and finds out whether
        it can.
        """
        if base != self._ring.fingerprint:
            return (
                f"{self._node} has another ring than {op} is of: it has ended, or is not known here",
                self._effects(),
            )
        if self.unanimous and self._initiator.abort(op, "an operator aborted it"):
            self._aborted(op)
        elif self.unanimous:
            self._promises.abort(op)
        elif self._ballots.proposing is not None:
            return f"{self._node} is proposing another change", self._effects()
        else:
            self._begin(ending or proposal_of(self._ring, self._new_op(), self._node, ()), now_ms)
        self._drain(now_ms)
        return "", self._effects()

    def abort_risk(self, op: str) -> str:
        """What may come of it when an operator aborts that here; "" when it is ended for all or not at
        all."""
        pending = self._promises.pending
        if not self.unanimous or self._initiator.proposing is not None or pending is None or pending.op != op:
            return ""
        said = f"{pending.initiator} may have committed {op}: abort it there if it can be reached"
        if pending.initiator in self._ring.voters:
            return f"{said}; if it has, the change comes back with it"
        return f"{said}; if it has, two changes are made of one ring as soon as another is committed"

    def received(self, sender: str, message: Message, now_ms: int) -> Effects:
        self._receive(sender, message, now_ms)
        self._drain(now_ms)
        return self._effects()

    def tick(self, now_ms: int, draws: Draws) -> Effects:
        """Time has passed."""
        if self.unanimous:
            self._tick_unanimous(now_ms)
        else:
            self._tick_ballots(now_ms)
        pending = self._pending is not None or self._proposing is not None
        for peer in self._spreader.round(self._ring, now_ms, pending, draws):
            self._send(peer, self._spreader.summary(self._ring))
        self._drain(now_ms)
        return self._effects()

    # -- proposing -----------------------------------------------------------------------------------

    def _new_op(self) -> str:
        self._operations += 1
        return f"{self._node}/{self._launch}/{self._operations}"

    def _begin(self, proposal: Proposal, now_ms: int) -> None:
        if self.unanimous:
            for peer in self._initiator.begin(self._ring, proposal, now_ms):
                self._send(peer, Propose(proposal))
        else:
            prepare = self._ballots.begin(self._ring, proposal, now_ms)
            self._send_all(self._ring.voters, prepare)
        self._drain(now_ms)

    def _tick_unanimous(self, now_ms: int) -> None:
        proposal = self._initiator.proposing
        if proposal is not None and self._initiator.late(now_ms):
            missing = ", ".join(self._initiator.missing)
            self._initiator.abort(proposal.op, f"no answer of {missing} in time")
            self._aborted(proposal.op)
        elif proposal is not None:
            self._send_all(self._initiator.again(now_ms), Propose(proposal))
        asked = self._promises.to_ask(now_ms)
        if asked is not None:
            self._send(asked.initiator, Ask(asked.op, asked.base))

    def _tick_ballots(self, now_ms: int) -> None:
        if self._ballots.late(now_ms):
            self._give_up("no majority answered in time")
            return
        message, peers = self._ballots.again(now_ms)
        if message is not None:
            self._send_all(peers, message)

    def _aborted(self, op: str) -> None:
        assert self._initiator.state is not None
        self._send_all(self._initiator.state.cohort, Abort(op))
        self._ended.append(Ended(op, Outcome.ABORTED, self._initiator.reason))

    def _give_up(self, text: str) -> None:
        own = self._ballots.proposing
        assert own is not None, "who is idle gives nothing up"
        self._ended.append(Ended(own.op, Outcome.UNKNOWN if self._ballots.sent else Outcome.ABORTED, text))
        self._ballots.end()

    # -- messages ------------------------------------------------------------------------------------

    def _receive(self, sender: str, message: Message, now_ms: int) -> None:
        match message:
            case Summary():
                self._spreader.heard(sender, message, self._ring)
                answer = self._spreader.answer(self._ring, message)
                if answer is not None:
                    self._send(sender, answer)
            case Deltas():
                self._take(sender, message.deltas)
            case Whole():
                self._merge(sender, message.ring)
            case _ if self.unanimous:
                self._receive_unanimous(sender, message, now_ms)
            case _:
                self._receive_ballots(sender, message, now_ms)

    def _receive_unanimous(self, sender: str, message: Message, now_ms: int) -> None:
        match message:
            case Propose():
                answer = self._promises.propose(self._ring, message, self._terms, now_ms)
                self._send(sender, answer)
                self._compare(sender, answer)
            case Accept():
                proposal = self._initiator.accepted(sender, message.op)
                if proposal is not None:
                    self._decided(proposal)
                else:
                    self._tell_outcome(sender, message.op, message.base)
            case Reject():
                if self._initiator.rejected(sender, message.op, message.why, message.text):
                    self._aborted(message.op)
            case Abort():
                self._promises.abort(message.op)
            case Ask():
                self._tell_outcome(sender, message.op, message.base)
            case _:
                self._foreign(sender, message)

    def _receive_ballots(self, sender: str, message: Message, now_ms: int) -> None:
        match message:
            case Prepare():
                answer = self._votes.prepare(self._ring, message)
                self._send(sender, answer)
                self._compare(sender, answer)
            case Propose():
                vote = self._votes.propose(self._ring, message, self._terms)
                self._send(sender, vote)
                self._compare(sender, vote)
            case Promise():
                propose = self._ballots.promised(sender, message, now_ms)
                if propose is not None:
                    self._send_all(self._ring.voters, propose)
            case Accept():
                proposal = self._ballots.accepted(sender, message)
                if proposal is not None:
                    self._decided(proposal)
            case Reject():
                text = self._ballots.rejected(sender, message, now_ms)
                if text:
                    self._give_up(text)
            case _:
                self._foreign(sender, message)

    def _foreign(self, sender: str, message: Message) -> None:
        """Another mode's message: the sender is no member of this ring."""
        self._alarms.append(f"{sender} sent {type(message).__name__}, which is of another mode")

    def _compare(self, sender: str, answer: Accept | Promise | Reject) -> None:
        """Whoever proposes on another ring is told of this one, so that one of the two comes up."""
        if isinstance(answer, Reject) and answer.why is Why.STALE:
            self._send(sender, self._spreader.summary(self._ring))

    def _tell_outcome(self, sender: str, op: str, base: bytes) -> None:
        """To a member that holds a promise of this node's proposal."""
        if base != self._ring.fingerprint:
            self._send(sender, self._spreader.since(self._ring, base))
        elif self._initiator.proposing is None or self._initiator.proposing.op != op:
            self._send(sender, Abort(op))

    # -- the ring ------------------------------------------------------------------------------------

    def _decided(self, proposal: Proposal) -> None:
        """The decision is written with the ring that it makes, in this step."""
        assert proposal.base == self._ring.fingerprint, "a decision is of this ring"
        self._move(applied(self._ring, proposal.delta), proposal.delta)
        self._agreed.append(proposal.delta)
        self._tell_seeds()

    def _tell_seeds(self) -> None:
        """What is newest, to seeds first; without seeds or beyond them, the rounds bring it."""
        newest = self._spreader.newest(self._ring)
        for seed in self._spreader.told_first(self._ring):
            self._send(seed, newest)

    def _take(self, sender: str, deltas: Sequence[Delta]) -> None:
        for delta in deltas:
            known = self._spreader.known(delta.base)
            if delta.base == self._ring.fingerprint:
                ring = outcome(self._ring, delta)
                if ring.fingerprint != delta.target:
                    self._alarms.append(f"{delta.op}, which {sender} sent, has another outcome here")
                    return
                self._move(ring, delta)
            elif known is not None and known.op != delta.op:
                self._alarms.append(f"{known.op} and {delta.op} were both committed on one ring")
                part = Ring(self._ring.mode, delta.sequence, delta.entries)
                self._move(merge(self._ring, part), None)
            elif known is None and delta.target != self._ring.fingerprint:
                # Of a ring that this node does not have: whoever is ahead brings the other up.
                self._send(sender, self._spreader.summary(self._ring))
                return

    def _merge(self, sender: str, theirs: Ring) -> None:
        if theirs.mode is not self._ring.mode:
            self._alarms.append(f"{sender} has a ring of another mode, {theirs.mode}")
            return
        merged = merge(self._ring, theirs)
        apart = merged.fingerprint not in (self._ring.fingerprint, theirs.fingerprint)
        if apart or contradictions(self._ring, theirs):
            self._alarms.append(f"{sender} has {theirs.title()}, which contradicts {self._ring.title()}")
        if merged.fingerprint != self._ring.fingerprint:
            self._move(merged, None)

    def _move(self, ring: Ring, delta: Delta | None) -> None:
        """All parts hear of the ring that there is now."""
        before, self._ring = self._ring, ring
        assert ring.sequence >= before.sequence, "the ring goes forward"
        alarm = self._promises.moved(before, ring, delta)
        if alarm and self.unanimous and delta is not None and self._own_op != delta.op:
            self._alarms.append(alarm)
        self._votes.moved(ring)
        self._spreader.moved(ring, delta)
        self._end_own(delta)

    @property
    def _own_op(self) -> str:
        return self._initiator.state.proposal.op if self._initiator.state is not None else ""

    def _end_own(self, delta: Delta | None) -> None:
        """What this node proposes on a ring that is there no more has ended."""
        own = self._initiator.proposing or self._ballots.proposing
        state = self._initiator.state
        if self.unanimous and state is not None and delta is not None and state.proposal.op == delta.op:
            assert state.stage is Stage.COMMITTED, "its initiator alone commits a proposal"
            self._ended.append(Ended(delta.op, Outcome.COMMITTED, ""))
        elif own is not None and delta is None:
            self._initiator.abort(own.op, "the ring is another one")
            sent = self._ballots.sent and not self.unanimous
            self._ended.append(Ended(own.op, Outcome.UNKNOWN if sent else Outcome.ABORTED, "others moved on"))
        elif own is not None and delta is not None:
            won = own.op == delta.op
            self._initiator.abort(own.op, f"{delta.op} was committed")
            outcome = Outcome.COMMITTED if won else Outcome.ABORTED
            self._ended.append(Ended(own.op, outcome, "" if won else f"{delta.op} was committed"))
        self._ballots.end()
        assert not (self._initiator.proposing or self._ballots.proposing), "a proposal ends with its ring"

    # -- the end of a step ---------------------------------------------------------------------------

    def _send(self, peer: str, message: Message) -> None:
        """What a node says to itself it hears within the step."""
        if peer == self._node:
            self._inbox.append(message)
        else:
            self._messages.append((peer, message))

    def _send_all(self, peers: Sequence[str], message: Message) -> None:
        for peer in peers:
            self._send(peer, message)

    def _drain(self, now_ms: int) -> None:
        while self._inbox:
            self._receive(self._node, self._inbox.pop(0), now_ms)

    def _effects(self) -> Effects:
        assert len(self._messages) <= RING_MESSAGES_MAX, "a step says so much at most"
        now = (self._ring, self._launch, self._promises.state, self._initiator.state, self._votes.state)
        assert self._ring.sequence >= self._kept.ring.sequence, "the ring only goes forward"
        kept = Kept(*now) if any(map(operator.is_not, now, _FIELDS(self._kept))) else None
        self._kept = kept or self._kept
        effects = Effects(
            kept,
            tuple(self._messages),
            tuple(self._alarms),
            tuple(self._ended),
            tuple(self._agreed),
        )
        self._messages, self._alarms, self._ended, self._agreed = [], [], [], []
        return effects
