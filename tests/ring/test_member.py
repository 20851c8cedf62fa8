"""What no failure of the table shows: refusals, limits, other modes, restarts, and self-checks."""

from __future__ import annotations

import msgspec
import pytest

from lockstep.ring.ballots import BallotInitiator, VotedState, Votes, majority
from lockstep.ring.changes import Change, Kind, Step
from lockstep.ring.limits import (
    RING_ASK_MS,
    RING_BACKOFF_MS_MAX,
    RING_DEAD_MAX,
    RING_PROPOSAL_MS,
    RING_RETRY_MS,
)
from lockstep.ring.member import Effects, Kept, Outcome, RingMember, first_kept
from lockstep.ring.messages import (
    NO_BALLOT,
    Abort,
    Accept,
    Accepted,
    Ask,
    Ballot,
    Deltas,
    Message,
    Prepare,
    Promise,
    Propose,
    Reject,
    Terms,
    Whole,
    Why,
    proposal_of,
)
from lockstep.ring.ring import Mode, Ring, applied
from lockstep.ring.unanimous import Initiator, OwnProposal, PromisedState, Promises, Stage
from lockstep.values.codec import decoder, encode

from .rings import after, change, founders, join

ALL, MOST = Mode.UNANIMOUS, Mode.QUORUM


def member(name: str, kept: Kept, factor: int = 1) -> RingMember:
    made = RingMember(name, kept, (), {"dc1": factor}, 0)
    made.start()
    return made


def fresh(mode: Mode, count: int = 3, name: str = "n1", factor: int = 1) -> RingMember:
    return member(name, first_kept(founders(count, mode)), factor)


def only(effects: Effects) -> Message:
    [(_, message)] = effects.messages
    return message


def move(ring: Ring, op: str = "n9/1/1", token: int = 5) -> Propose:
    changes = [Change(Kind.MOVE, Step.BEGIN, "n2", (token,))]
    return Propose(proposal_of(ring, op, "n9", changes))


def test_a_start_is_written_before_anything_else() -> None:
    made = RingMember("n1", first_kept(founders(3)), (), {}, 0)
    effects = made.start()
    assert effects.kept is not None and effects.kept.launch == 1 and effects.messages == ()
    assert made.tick(1, (0.0, 0.0)).kept is None, "nothing changed since"


def test_what_is_kept_survives_its_bytes() -> None:
    made = fresh(ALL)
    kept = made.received("n9", move(made.ring), 0).kept
    assert kept is not None and decoder(Kept).decode(encode(kept)) == kept
    voting = fresh(MOST)
    voted = voting.received(
        "n9", msgspec.structs.replace(move(voting.ring), ballot=Ballot(1, "n9", 1)), 0
    ).kept
    assert voted is not None and decoder(Kept).decode(encode(voted)) == voted and voted.voted.accepted


def test_messages_survive_their_bytes() -> None:
    ring = founders(3)
    proposal = move(ring).proposal
    ballot = Ballot(3, "n1", 2)
    messages: list[Message] = [
        Propose(proposal, ballot, found=True),
        Accept("op", ring.fingerprint, ballot),
        Reject("op", ring.fingerprint, ballot, Why.BALLOT, "said", 3, ballot),
        Prepare(ring.fingerprint, ballot),
        Promise(ring.fingerprint, ballot, Accepted(ballot, proposal)),
        Abort("op"),
        Ask("op", ring.fingerprint),
        Deltas((proposal.delta,)),
        Whole(ring),
    ]
    for message in messages:
        assert decoder(Message).decode(encode(message)) == message  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", [ALL, MOST])
def test_a_proposal_of_another_outcome_or_of_too_few_owners_is_refused(mode: Mode) -> None:
    ballot = Ballot(1, "n9", 1) if mode is MOST else NO_BALLOT
    made = fresh(mode, factor=3)
    asked = move(made.ring)
    wrong = msgspec.structs.replace(asked.proposal, delta=move(made.ring, token=6).proposal.delta)
    answer = only(made.received("n9", Propose(wrong, ballot), 0))
    assert isinstance(answer, Reject) and answer.why is Why.ILLEGAL and "outcome" in answer.text
    leaving = proposal_of(made.ring, "n9/1/2", "n9", [change(Kind.LEAVE, 3)])
    answer = only(made.received("n9", Propose(leaving, ballot), 0))
    assert isinstance(answer, Reject) and "needs 3" in answer.text
    answer = only(made.received("n9", Propose(leaving, ballot, found=True), 0))
    assert isinstance(answer, Accept if mode is MOST else Reject), "what was found may be decided"


@pytest.mark.parametrize("mode", [ALL, MOST])
def test_who_has_no_voice_accepts_nothing(mode: Mode) -> None:
    made = fresh(mode, name="n7")
    ballot = Ballot(1, "n9", 1) if mode is MOST else NO_BALLOT
    answer = only(made.received("n9", msgspec.structs.replace(move(made.ring), ballot=ballot), 0))
    assert isinstance(answer, Reject) and answer.why is Why.NO_VOICE


@pytest.mark.parametrize("mode", [ALL, MOST])
def test_one_thing_is_proposed_at_a_time(mode: Mode) -> None:
    made = fresh(mode)
    assert made.refusal([join(4)]) == ""
    made.request([join(4)], 0)
    assert "is proposing another change" in made.refusal([join(5)])
    if mode is MOST:
        assert "proposing" in made.abort("n2/1/1", made.ring.fingerprint, 0)[0]
    assert "another ring" in made.abort("n2/1/1", b"x", 0)[0]


@pytest.mark.parametrize("mode", [ALL, MOST])
def test_a_proposal_that_nobody_answers_is_given_up(mode: Mode) -> None:
    made = fresh(mode)
    op, _ = made.request([join(4)], 0)
    again = made.tick(RING_PROPOSAL_MS - 1, (0.0, 0.0))
    assert {peer for peer, message in again.messages if isinstance(message, Propose | Prepare)} == {
        "n2",
        "n3",
    }
    [ended] = made.tick(RING_PROPOSAL_MS, (0.0, 0.0)).ended
    assert (ended.op, ended.outcome) == (op, Outcome.ABORTED)
    assert made.refusal([join(4)]) == "" and made.standing.proposing is None


def test_a_proposal_that_was_sent_under_a_ballot_and_not_decided_has_an_unknown_outcome() -> None:
    made = fresh(MOST)
    op, effects = made.request([join(4)], 0)
    prepare = effects.messages[0][1]
    assert isinstance(prepare, Prepare)
    made.received("n2", Promise(prepare.base, prepare.ballot, None), 0)
    assert made.standing.missing == ("n2", "n3")
    [ended] = made.tick(RING_PROPOSAL_MS, (0.0, 0.0)).ended
    assert (ended.op, ended.outcome) == (op, Outcome.UNKNOWN)


def test_a_change_that_most_find_illegal_ends_at_once() -> None:
    made = fresh(MOST)
    op, effects = made.request([join(4)], 0)
    prepare = effects.messages[0][1]
    assert isinstance(prepare, Prepare)
    made.received("n2", Promise(prepare.base, prepare.ballot, None), 0)
    refusal = Reject(op, prepare.base, prepare.ballot, Why.ILLEGAL, "no", 1)
    assert not made.received("n2", refusal, 0).ended
    [ended] = made.received("n3", refusal, 0).ended
    assert ended.outcome is Outcome.UNKNOWN and "n3 refuses: no" in ended.text


def test_late_and_repeated_answers_count_once() -> None:
    ring = founders(3, ALL)
    made = member("n9", first_kept(ring))
    op, _ = made.request([join(9)], 0)
    for _ in range(3):
        assert not made.received("n1", Accept(op, ring.fingerprint), 0).ended
    assert not made.received("stranger", Accept(op, ring.fingerprint), 0).ended
    assert made.standing.missing == ("n2", "n3")
    made.received("n2", Accept(op, ring.fingerprint), 0)
    effects = made.received("n3", Accept(op, ring.fingerprint), 0)
    assert [one.outcome for one in effects.ended] == [Outcome.COMMITTED] and effects.kept is not None
    assert effects.kept.own is not None and effects.kept.own.stage is Stage.COMMITTED
    assert effects.kept.ring.sequence == 2, "the decision is written with the ring"
    assert not made.received("n1", Reject(op, ring.fingerprint, NO_BALLOT, Why.BUSY, "", 1), 0).ended


def test_an_initiator_that_restarts_undecided_has_aborted() -> None:
    ring = founders(3, ALL)
    proposal = move(ring).proposal
    undecided = OwnProposal(proposal, ring.voters, Stage.PROPOSING)
    restarted = Initiator("n9", undecided)
    assert restarted.state is not None and restarted.state.stage is Stage.ABORTED
    assert restarted.accepted("n1", proposal.op) is None and restarted.missing == ()
    made = member("n9", msgspec.structs.replace(first_kept(ring), own=undecided))
    assert only(made.received("n1", Ask(proposal.op, ring.fingerprint), 0)) == Abort(proposal.op)


def test_aborted_proposals_are_remembered_up_to_a_limit() -> None:
    ring = founders(3, ALL)
    promises = Promises("n1", PromisedState())
    for number in range(RING_DEAD_MAX + 1):
        promises.abort(f"op{number}")
        promises.validate()
    assert len(promises.state.dead) == RING_DEAD_MAX and "op0" not in promises.state.dead
    answer = promises.propose(ring, move(ring, f"op{RING_DEAD_MAX}"), Terms(), 0)
    assert isinstance(answer, Reject) and answer.why is Why.ABORTED
    assert isinstance(promises.propose(ring, move(ring, "op0"), Terms(), 0), Accept)


def test_an_acceptor_takes_no_lower_ballot_and_repeats_itself() -> None:
    ring = founders(3)
    votes = Votes("n1", VotedState(ring.fingerprint))
    low, high = Ballot(1, "n2", 1), Ballot(2, "n1", 1)
    assert isinstance(votes.prepare(ring, Prepare(ring.fingerprint, high)), Promise)
    for asked in (Prepare(ring.fingerprint, low), msgspec.structs.replace(move(ring), ballot=low)):
        answer = (
            votes.prepare(ring, asked) if isinstance(asked, Prepare) else votes.propose(ring, asked, Terms())
        )
        assert isinstance(answer, Reject) and answer.why is Why.BALLOT and answer.promised == high
    taken = msgspec.structs.replace(move(ring), ballot=high)
    assert (
        votes.propose(ring, taken, Terms())
        == votes.propose(ring, taken, Terms())
        == Accept("n9/1/1", ring.fingerprint, high)
    )
    votes.validate()
    with pytest.raises(AssertionError, match="one proposal"):
        votes.propose(ring, msgspec.structs.replace(move(ring, "other"), ballot=high), Terms())
    votes.moved(after(ring, join(4)))
    assert votes.state == VotedState(after(ring, join(4)).fingerprint)


def test_two_initiators_wait_for_different_times_and_never_too_long() -> None:
    ring = founders(5)
    waits = {}
    for name in ("n1", "n2", "n9"):
        initiator = BallotInitiator(name, 1)
        prepare = initiator.begin(ring, move(ring).proposal, 0)
        refusal = Reject("", ring.fingerprint, prepare.ballot, Why.BALLOT, "", 1, Ballot(7, "n5", 1))
        assert initiator.rejected("n3", refusal, 0) == ""
        initiator.validate()
        waits[name] = next(ms for ms in range(RING_BACKOFF_MS_MAX + 1) if initiator.again(ms)[0] is not None)
        assert initiator.missing == ring.voters
    assert waits["n1"] < waits["n2"] < waits["n9"]


def test_majorities_have_a_member_in_common() -> None:
    for count in range(1, 12):
        assert 2 * majority(founders(count)) > count


def test_another_mode_is_alarmed_of_and_changes_nothing() -> None:
    made = fresh(MOST)
    [alarm] = made.received("n2", Whole(founders(3, ALL)), 0).alarms
    assert "another mode" in alarm and made.ring == founders(3, MOST)
    for mode, message in ((MOST, Ask("op", b"")), (ALL, Prepare(b"", NO_BALLOT))):
        assert "another mode" in fresh(mode).received("n2", message, 0).alarms[0]


def test_two_changes_of_one_ring_are_alarmed_of_and_merged() -> None:
    made = fresh(MOST)
    base = made.ring
    one, other = (proposal_of(base, op, "n9", [join(number)]).delta for op, number in (("a", 8), ("b", 9)))
    made.received("n2", Deltas((one,)), 0)
    [alarm] = made.received("n3", Deltas((other,)), 0).alarms
    assert "a and b were both committed" in alarm and {"n8", "n9"} <= set(made.ring.by_name)
    made.validate()


def test_a_change_of_an_unknown_ring_makes_both_compare() -> None:
    made = fresh(MOST)
    ahead = after(made.ring, join(8))
    delta = proposal_of(ahead, "op", "n9", [join(9)]).delta
    answer = only(made.received("n2", Deltas((delta,)), 0))
    assert answer == made._spreader.summary(made.ring)
    whole = made.received("n2", Whole(applied(ahead, delta)), 0)
    assert not whole.alarms and made.ring.sequence == 3
    assert not made.received("n2", Whole(ahead), 0).alarms and made.ring.sequence == 3


def test_machines_say_when_they_are_not_sound() -> None:
    ring = founders(3, ALL)
    proposal = move(ring).proposal
    with pytest.raises(AssertionError, match="not promised"):
        Promises("n1", PromisedState(proposal, (proposal.op,))).validate()
    with pytest.raises(AssertionError, match="oldest"):
        Promises("n1", PromisedState(None, ("op",) * (RING_DEAD_MAX + 1))).validate()
    with pytest.raises(AssertionError, match="only members"):
        Initiator("n1", OwnProposal(proposal, (), Stage.COMMITTED)).validate()
    with pytest.raises(AssertionError, match="was promised"):
        Votes(
            "n1", VotedState(ring.fingerprint, NO_BALLOT, Accepted(Ballot(1, "n1", 1), proposal))
        ).validate()
    with pytest.raises(AssertionError, match="a vote is for"):
        state = VotedState(b"other", Ballot(1, "n1", 1), Accepted(Ballot(1, "n1", 1), proposal))
        Votes("n1", state).validate()
    made = fresh(MOST)
    made._votes = Votes("n1", VotedState(b"other"))
    with pytest.raises(AssertionError, match="of this ring"):
        made.validate()
    busy = BallotInitiator("n1", 1)
    busy.begin(ring, proposal, 0)
    busy._answers = {"n1": None, "n2": None, "n3": None}
    with pytest.raises(AssertionError, match="majority goes on"):
        busy.validate()


def test_a_change_whose_outcome_is_another_one_is_not_taken() -> None:
    made = fresh(MOST)
    delta = proposal_of(made.ring, "op", "n9", [join(9)]).delta
    wrong = msgspec.structs.replace(delta, target=b"x" * 32)
    [alarm] = made.received("n2", Deltas((wrong,)), 0).alarms
    assert "another outcome" in alarm and made.ring == founders(3)


def test_an_abort_says_beforehand_what_may_come_of_it() -> None:
    made, ring = fresh(ALL), founders(3, ALL)
    made.received("n9", move(ring), 0)
    assert "two changes are made of one ring" in made.abort_risk("n9/1/1")
    assert made.abort_risk("other") == ""
    of_member = fresh(ALL)
    proposal = msgspec.structs.replace(move(ring, "n2/1/1").proposal, initiator="n2")
    of_member.received("n2", Propose(proposal), 0)
    assert "comes back with it" in of_member.abort_risk("n2/1/1")
    own = fresh(ALL)
    op, _ = own.request([join(4)], 0)
    assert own.abort_risk(op) == "", "the initiator knows"
    assert fresh(MOST).abort_risk("n9/1/1") == ""


@pytest.mark.parametrize("mode", [ALL, MOST])
def test_what_is_decided_is_told_to_seeds_at_once_and_after_a_restart(mode: Mode) -> None:
    ring = founders(3, mode)
    made = RingMember("n9", first_kept(ring), ("n2", "n3"), {}, 0)
    made.start()
    op, effects = made.request([join(9)], 0)
    ballot = next((m.ballot for _, m in effects.messages if isinstance(m, Prepare)), NO_BALLOT)
    if mode is MOST:
        for peer in ("n1", "n2"):
            made.received(peer, Promise(ring.fingerprint, ballot, None), 0)
    said: tuple[tuple[str, Message], ...] = ()
    kept = None
    for peer in ("n1", "n2", "n3"):
        effects = made.received(peer, Accept(op, ring.fingerprint, ballot), 0)
        said, kept = said + effects.messages, effects.kept or kept
    told = [(peer, message) for peer, message in said if isinstance(message, Deltas)]
    assert [peer for peer, _ in told] == ["n2", "n3"]
    assert kept is not None and kept.ring == made.ring and made.ring.sequence == 2
    again = RingMember("n9", kept, ("n2", "n3"), {}, 0).start().messages
    assert again == ((("n2", Whole(made.ring)), ("n3", Whole(made.ring))) if mode is ALL else ())


def test_what_was_not_answered_is_sent_again_as_it_was() -> None:
    made, ring = fresh(MOST), founders(3)
    _, effects = made.request([join(4)], 0)
    [prepare] = {message for _, message in effects.messages if isinstance(message, Prepare)}
    early = made.tick(RING_RETRY_MS - 1, (0.0, 0.0)).messages
    assert not [message for _, message in early if isinstance(message, Prepare)]
    again = [one for one in made.tick(RING_RETRY_MS, (0.0, 0.0)).messages if one[1] == prepare]
    assert again == [("n2", prepare), ("n3", prepare)]
    found = Accepted(Ballot(1, "n0", 1), move(ring).proposal)
    sent = made.received("n2", Promise(ring.fingerprint, prepare.ballot, found), RING_RETRY_MS).messages
    [propose] = {message for _, message in sent if isinstance(message, Propose)}
    assert propose == Propose(found.proposal, prepare.ballot, found=True)
    late = made.tick(2 * RING_RETRY_MS, (0.0, 0.0)).messages
    assert [one for one in late if isinstance(one[1], Propose)] == [("n2", propose), ("n3", propose)]


def test_whoever_waits_for_a_ballot_tries_a_higher_one() -> None:
    made, ring = fresh(MOST), founders(3)
    _, effects = made.request([join(4)], 0)
    [prepare] = {message for _, message in effects.messages if isinstance(message, Prepare)}
    higher = Ballot(9, "n2", 1)
    refusal = Reject("", ring.fingerprint, prepare.ballot, Why.BALLOT, "", 1, higher)
    assert made.received("n2", refusal, 0).messages == () and made.standing.missing == ()
    later = made.tick(RING_BACKOFF_MS_MAX, (0.0, 0.0)).messages
    [prepare] = {message for _, message in later if isinstance(message, Prepare)}
    assert prepare.ballot == Ballot(10, "n1", 1) > higher


def test_a_proposal_ends_when_others_brought_the_ring_further() -> None:
    for mode in (ALL, MOST):
        made = fresh(mode)
        op, _ = made.request([join(4)], 0)
        ahead = after(after(made.ring, join(8)), join(9))
        [ended] = made.received("n2", Whole(ahead), 0).ended
        assert (ended.op, ended.outcome, ended.text) == (op, Outcome.ABORTED, "others moved on")
        assert made.standing.proposing is None and made.standing.pending is None
        state = made._initiator
        assert state.reason == ("the ring is another one" if mode is ALL else "")


def test_an_acceptor_asks_the_initiator_now_and_then() -> None:
    made = fresh(ALL)
    made.received("n9", move(made.ring), 0)
    asks = [
        ms
        for ms in range(0, 3 * RING_ASK_MS, 100)
        if any(isinstance(message, Ask) for _, message in made.tick(ms, (0.0, 0.0)).messages)
    ]
    assert asks == [RING_ASK_MS, 2 * RING_ASK_MS]
    made.received("n9", Abort("n9/1/1"), 0)
    assert made.standing.pending is None and made._promises.to_ask(99 * RING_ASK_MS) is None
