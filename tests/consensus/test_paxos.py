"""Decisions one after another: random schedules of proposers and acceptors, and the cases that matter."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from lockstep.consensus import paxos
from lockstep.consensus.paxos import Acceptor, Ballot, Fate, Proposal
from lockstep.values.ids import NodeId
from lockstep.values.limits import BALLOT_CHAIN_MAX

A, B, C = NodeId(1), NodeId(2), NodeId(3)


def ballot(time_us: int, draw: int = 0) -> Ballot:
    return Ballot(time_us, draw)


def own(time_us: int, *chain: int) -> Proposal:
    return Proposal(ballot(time_us), ballot(time_us), b"%d" % time_us, tuple(ballot(one) for one in chain))


def test_a_promise_holds_against_older_and_equal_times() -> None:
    state, given_ = paxos.prepare(Acceptor(), ballot(5, 1))
    assert given_
    assert paxos.prepare(state, ballot(5, 1)) == (state, True), "asked again, it is repeated"
    for other in (ballot(4), ballot(5, 0), ballot(5, 2)):
        assert paxos.prepare(state, other) == (state, False)
        assert paxos.accept(state, replace(own(1), ballot=other)) == (state, False)
    accepted, done = paxos.accept(state, replace(own(1), ballot=ballot(5, 1)))
    assert done and accepted.in_progress is not None
    assert paxos.accept(accepted, own(7))[1], "a later one needs no promise"


@pytest.mark.parametrize("first", [1, 2])
def test_of_two_requests_in_one_microsecond_an_acceptor_takes_one(first: int) -> None:
    """Whichever comes first, whatever the draws, and also once it has accepted or heard what was decided."""
    won, lost = ballot(5, first), ballot(5, 3 - first)
    mine, other = (Proposal(one, one, b"%d" % one.draw) for one in (won, lost))
    promised, _ = paxos.prepare(Acceptor(), won)
    accepted, _ = paxos.accept(promised, mine)
    heard = paxos.commit(Acceptor(), mine)
    for state in (promised, accepted, paxos.commit(accepted, mine), heard):
        assert paxos.prepare(state, lost) == (state, False)
        assert paxos.accept(state, other) == (state, False)
    assert paxos.prepare(accepted, won) == (accepted, True), (
        "asked again, it is repeated, with what came since"
    )
    assert paxos.prepare(heard, won) == (heard, False), "what is decided needs no promise any more"


def test_what_is_decided_ends_what_is_in_progress_and_bars_older_ballots() -> None:
    state, _ = paxos.accept(Acceptor(), own(3))
    state = paxos.commit(state, own(4))
    assert state.in_progress is None
    assert paxos.prepare(state, ballot(4, 9)) == (state, False)
    assert paxos.commit(state, own(2)) is state
    assert paxos.commit(state, own(4)) is state


def test_a_vote_that_decides_leaves_nothing_in_progress() -> None:
    before, _ = paxos.accept(Acceptor(), own(2))
    state, accepted = paxos.decide(before, own(4))
    assert accepted and state == Acceptor(ballot(4), own(2), own(4)) and state.in_progress is None
    assert paxos.decide(state, own(3)) == (state, False), "an older one is refused"
    assert paxos.decide(state, own(4)) == (state, True), "told again"


def test_a_quorum_says_what_is_in_progress_and_who_lacks_what() -> None:
    knows = paxos.commit(Acceptor(), own(4))
    behind, _ = paxos.accept(paxos.commit(Acceptor(), own(2)), own(3, 2))
    found = paxos.judge({A: knows, B: behind})
    assert (found.in_progress, found.committed, found.lacking) == (None, own(4), (B,))
    busy, _ = paxos.accept(knows, own(6, 4))
    assert paxos.judge({A: busy, B: behind}).in_progress == own(6, 4)


@pytest.mark.parametrize(
    ("chain", "expected"),
    [
        ((), Fate.LOST),
        ((1, 2), Fate.OPEN),
        ((1, 2, 5), Fate.DECIDED),
        ((1, 2, 5, 6), Fate.DECIDED),
        ((1, 2, 6), Fate.LOST),
        (tuple(range(10, 10 + BALLOT_CHAIN_MAX + 1)), Fate.UNKNOWN),
    ],
)
def test_the_fate_of_a_proposal_of_ones_own(chain: tuple[int, ...], expected: Fate) -> None:
    committed = own(chain[-1], *chain[:-1][-BALLOT_CHAIN_MAX:]) if chain else None
    if not chain:
        # Before the first decision nothing was known, and nothing is.
        assert paxos.fate(own(5), None) is Fate.OPEN
        return
    assert paxos.fate(own(5, 1, 2), committed) is expected


def test_whose_rows_are_made_good_counts_as_decided() -> None:
    made_good = own(5, 1, 2).under(ballot(9)).made_good()
    assert (made_good.ballot, made_good.origin, made_good.value) == (ballot(9), ballot(5), b"")
    assert paxos.decided(made_good) == (ballot(1), ballot(2), ballot(5))
    assert paxos.fate(own(5, 1, 2), made_good) is Fate.DECIDED


def test_what_is_ended_without_effect_counts_as_never_decided() -> None:
    voided = own(5, 1, 2).under(ballot(9)).voided()
    assert voided.ballot == ballot(9) and voided.origin == ballot(5)
    assert paxos.decided(voided) == (ballot(1), ballot(2))
    assert paxos.fate(own(5, 1, 2), voided) is Fate.OPEN, "it may be proposed again"
    assert paxos.fate(own(5, 1, 2), own(12, 1, 2)) is Fate.LOST
    knows = paxos.commit(paxos.accept(Acceptor(), own(5, 1, 2))[0], voided)
    assert knows.in_progress is None


class World:
    """Three acceptors, and proposers whose messages come late or never; each adds a name to a set.

    A replica holds the names it was told of; a value lists those that its proposer saw: so decided values
    show lost decisions. Some proposers accept first, and tell the others that their vote decides.
    """

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.acceptors = {A: Acceptor(), B: Acceptor(), C: Acceptor()}
        self.applied: dict[NodeId, set[bytes]] = {A: set(), B: set(), C: set()}
        self.decided: dict[Ballot, bytes] = {}
        #: Time -> the ballot under which something was decided then.
        self.ballots: dict[int, Ballot] = {}
        self.time = self.rounds = 0
        #: Whom messages are on their way to, and whether their vote decides.
        self.late: list[tuple[NodeId, Proposal, bool]] = []

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.round()
            for late in self.draw.sample(self.late, min(len(self.late), self.draw.randrange(3))):
                self.vote(*late)
                self.note(late[1])

    def some(self) -> list[NodeId]:
        return self.draw.sample([A, B, C], self.draw.choice((2, 2, 3)))

    def round(self) -> None:
        self.time += self.draw.randrange(3)
        self.rounds += 1
        at = ballot(self.time, 1000 * self.draw.randrange(3) + self.rounds)
        promises = {}
        seen: set[bytes] = set()
        for node in self.some():
            self.acceptors[node], given_ = paxos.prepare(self.acceptors[node], at)
            if given_:
                promises[node] = self.acceptors[node]
                seen |= self.applied[node]
        if len(promises) < 2 or self.draw.random() < 0.1:
            return
        found = paxos.judge(promises)
        if found.in_progress is not None:
            proposal = found.in_progress.under(at)
        else:
            if found.committed is not None:
                for node in found.lacking:
                    self.commit(node, found.committed)
            proposal = paxos.propose(at, b" ".join(sorted(seen)), found.committed)
        reached = self.some()[: self.draw.choice((1, 2, 3))]
        decides = self.vote(reached[0], proposal, False) and self.draw.random() < 0.5
        for node in reached[1:]:
            self.vote(node, proposal, decides)
        self.late += [
            (node, proposal, decides)
            for node in (A, B, C)
            if node not in reached and self.draw.random() < 0.3
        ]
        if self.note(proposal):
            for node in self.draw.sample([A, B, C], self.draw.randrange(1, 4)):
                self.commit(node, proposal)

    def vote(self, node: NodeId, proposal: Proposal, decides: bool) -> bool:
        step = paxos.decide if decides else paxos.accept
        self.acceptors[node], accepted = step(self.acceptors[node], proposal)
        if decides and accepted:
            self.applied[node].add(_name(proposal.origin))
        return accepted

    def note(self, proposal: Proposal) -> bool:
        """Whether a quorum has accepted, and what that means for all decisions."""
        holders = [
            node for node, state in self.acceptors.items() if proposal in (state.accepted, state.committed)
        ]
        if len(holders) < 2:
            return False
        self.decided[proposal.origin] = proposal.value
        known = self.ballots.setdefault(proposal.ballot.time_us, proposal.ballot)
        assert known == proposal.ballot, f"{proposal.ballot} was decided in the microsecond of {known}"
        return True

    def commit(self, node: NodeId, proposal: Proposal) -> None:
        self.acceptors[node] = paxos.commit(self.acceptors[node], proposal)
        self.applied[node].add(_name(proposal.origin))

    def check(self) -> None:
        names: set[bytes] = set()
        for origin in sorted(self.decided):
            missed = names - set(self.decided[origin].split())
            assert not missed, f"{origin} was decided without {missed}"
            names.add(_name(origin))


def decides_alone(world: World, node: NodeId, proposal: Proposal, decides: bool) -> bool:
    """The first vote applies, too: nobody but its node has accepted by then."""
    world.acceptors[node], accepted = paxos.decide(world.acceptors[node], proposal)
    if accepted:
        world.applied[node].add(_name(proposal.origin))
        world.decided[proposal.origin] = proposal.value
    return accepted


def _name(origin: Ballot) -> bytes:
    return b"%d.%d" % (origin.time_us, origin.draw)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.integers(0, 1 << 32))
def test_every_decision_is_made_on_all_earlier_ones(seed: int) -> None:
    world = World(seed)
    world.run(40)
    world.check()


def prepare_by_draw(state: Acceptor, ballot: Ballot) -> tuple[Acceptor, bool]:
    """Of two ballots of one time the one with the larger draw is later."""
    return (replace(state, promised=ballot), True) if ballot >= state.floor else (state, False)


def accept_by_draw(state: Acceptor, proposal: Proposal) -> tuple[Acceptor, bool]:
    if proposal.ballot < state.floor:
        return state, False
    return replace(state, promised=proposal.ballot, accepted=proposal), True


@pytest.mark.parametrize(
    ("bug", "what"),
    [
        ("promise", "was decided without"),
        ("in_progress", "was decided without"),
        ("lacking", "was decided without"),
        ("decides_alone", "was decided without"),
        ("one time", "was decided in the microsecond of"),
    ],
)
def test_the_schedules_find_broken_steps(bug: str, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    judge = paxos.judge
    if bug == "one time":
        monkeypatch.setattr(paxos, "prepare", prepare_by_draw)
        monkeypatch.setattr(paxos, "accept", accept_by_draw)
    elif bug == "promise":
        monkeypatch.setattr(paxos, "accept", lambda state, p: (replace(state, accepted=p), True))
    elif bug == "in_progress":
        monkeypatch.setattr(paxos, "judge", lambda states: replace(judge(states), in_progress=None))
    elif bug == "decides_alone":
        monkeypatch.setattr(World, "vote", decides_alone)
    else:
        monkeypatch.setattr(paxos, "judge", lambda states: replace(judge(states), lacking=()))
    with pytest.raises(AssertionError, match=what):
        for seed in range(500):
            world = World(seed)
            world.run(40)
            world.check()


def test_the_page_shows_the_table_of_phases() -> None:
    page = Path(__file__).parents[2] / "docs" / "concepts" / "conditional-writes.md"
    assert f"```mermaid\n{paxos.mermaid()}```" in page.read_text()


def test_every_phase_leads_to_an_end() -> None:
    for phase in paxos.Phase:
        reached = {phase}
        for _ in paxos.Phase:
            reached |= {after for one in reached for after in paxos.STEPS[one].values()}
        assert paxos.Phase.ENDED in reached
