"""How a node joins: who is refused and why, and what attempts and answers that are lost or late do."""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec
import pytest

from lockstep.metadata.directory import BASE_FEATURES, DIRECTORY, FEATURE_STATE, FILE_STREAMING
from lockstep.metadata.features import ExcludeNodes
from lockstep.metadata.joining import JoinCode, JoinRefusal
from lockstep.metadata.transformations import Founder, Initialize, Register, UpdateNode
from lockstep.topology.force_remove import ForceRemove
from lockstep.topology.joining import (
    COMPARISONS,
    ENDS,
    TABLE,
    Basis,
    Event,
    JoinAnswer,
    JoinState,
    Phase,
    Presentation,
    Verdict,
    answered,
    basis_of,
    compared,
    difference,
    entry_id,
    first_attempt,
    given_up,
    judge,
    mermaid,
    told_terms,
    unfit,
)
from lockstep.values.errors import Rejected
from lockstep.values.ids import NodeId
from lockstep.values.limits import NODES_MAX
from tests.metadata.histories import History, founder, simple, started

WANTED = Register("host-9", "10.0.0.9", 7000, 9042, 7080, "dc1", "r1", "1", attempt=100)
LACKS = tuple(name for name in BASE_FEATURES if name != FILE_STREAMING)
ZERO = founder(3, ())


def cluster() -> History:
    """Nodes 1 and 2 own tokens, node 3 owns none, node 4 waits to join, node 5 has left."""
    history = History()
    founders = (founder(1, (1,)), founder(2, (200,)), ZERO)
    history.submit(Initialize("cluster-1", "test", founders))
    history.submit(msgspec.structs.replace(WANTED, host_id="host-4", address="10.0.0.4", attempt=50))
    history.submit(msgspec.structs.replace(WANTED, host_id="host-5", address="10.0.0.5"))
    history.submit(ForceRemove(NodeId(5)))
    return history


def presented(register: Register = WANTED, name: str = "test", cluster_id: str = "") -> Presentation:
    return Presentation(register, name, cluster_id)


def changed(**fields: object) -> Callable[[History], Presentation]:
    return lambda _history: presented(msgspec.structs.replace(WANTED, **fields))


def excluded(history: History) -> Presentation:
    history.submit(ExcludeNodes((NodeId(4),), "suspect"))
    return presented(msgspec.structs.replace(WANTED, host_id="host-4", address="10.0.0.4"))


def taken(history: History) -> Presentation:
    history.submit(msgspec.structs.replace(WANTED, host_id="h-6", address="10.0.0.6", replaces=NodeId(2)))
    return presented(msgspec.structs.replace(WANTED, replaces=NodeId(2)))


def full(history: History) -> Presentation:
    directory = msgspec.structs.replace(history.now.directory, next_node_id=NODES_MAX + 1)
    history.values[-1] = history.now.changed(DIRECTORY.set(directory))
    return presented()


def newer_log(history: History) -> Presentation:
    for node in history.now.directory.nodes:
        if node.id != 5:
            history.submit(UpdateNode(node.id, node.address, 7000, 9042, 7080, "2", log_version=2))
    return presented()


def no_zero_tokens(history: History) -> Presentation:
    history.values[-1] = history.now.changed(
        FEATURE_STATE.set(msgspec.structs.replace(history.now.features, enabled=()))
    )
    return presented(msgspec.structs.replace(WANTED, num_tokens=0))


REFUSALS: dict[str, tuple[Callable[[History], Presentation], JoinCode, str]] = {
    "name": (lambda _: presented(name="other"), JoinCode.CLUSTER_NAME, "cluster test, and"),
    "id": (lambda _: presented(cluster_id="c-2"), JoinCode.CLUSTER_ID, "directory belongs to c-2"),
    "no rack": (changed(rack=""), JoinCode.INCOMPLETE, "a rack"),
    "fewer than no tokens": (changed(num_tokens=-1), JoinCode.INCOMPLETE, "negative"),
    "no ids left": (full, JoinCode.FULL, "ids were given"),
    "old log": (newer_log, JoinCode.LOG_VERSION, "reads the log up to version 1"),
    "lacks a feature": (changed(features=LACKS), JoinCode.FEATURES, FILE_STREAMING),
    "has left": (changed(host_id="host-5"), JoinCode.REMOVED, "has left the cluster"),
    "excluded": (excluded, JoinCode.EXCLUDED, "is excluded"),
    "a member": (changed(host_id="host-1"), JoinCode.MEMBER, "belongs to node 1 (normal)"),
    "earlier attempt": (
        changed(host_id="host-4", attempt=49), JoinCode.EARLIER_ATTEMPT, "presented itself later"
    ),
    "other rack than before": (changed(host_id="host-4", rack="r2"), JoinCode.OTHER_PLACE, "dc1/r1"),
    "no tokens, unlike before": (
        changed(host_id="host-4", num_tokens=0), JoinCode.OTHER_PLACE, "dc1/r1 with tokens"
    ),
    "ports alike": (changed(cql_port=7000), JoinCode.PORTS, "not distinct"),
    "address in use": (changed(address="10.0.0.1"), JoinCode.ADDRESS, "belongs to node 1"),
    "address of one that joins": (changed(address="10.0.0.4"), JoinCode.ADDRESS, "belongs to node 4"),
    "replaces nobody": (changed(replaces=NodeId(77)), JoinCode.REPLACED_GONE, "no such node"),
    "replaces one that left": (changed(replaces=NodeId(5)), JoinCode.REPLACED_GONE, "it is left"),
    "replaces in another rack": (
        changed(replaces=NodeId(2), rack="r2"), JoinCode.REPLACED_PLACE, "takes over the place"
    ),
    "place is taken": (taken, JoinCode.REPLACED_TAKEN, "admitted to replace node 2"),
    "tokens for none": (changed(replaces=NodeId(3)), JoinCode.ZERO_TOKENS, "owns no tokens"),
    "none for tokens": (
        changed(replaces=NodeId(2), num_tokens=0), JoinCode.ZERO_TOKENS, "node 2 owns tokens"
    ),
    "zero tokens not enabled": (no_zero_tokens, JoinCode.ZERO_TOKENS, "not enabled yet"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSALS)
def test_who_is_refused_is_told_why_by_the_member_and_by_the_log(name: str) -> None:
    make, code, text = REFUSALS[name]
    history = cluster()
    asked = make(history)
    answer = judge(history.now, asked)
    assert answer.verdict is Verdict.REFUSED and answer.refusal is not None
    assert answer.refusal.code is code and answer.attempt == asked.attempt
    assert text in f"{answer.refusal.reason} {answer.refusal.hint}"
    if code not in (JoinCode.CLUSTER_NAME, JoinCode.CLUSTER_ID):
        with pytest.raises(Rejected) as logged:
            asked.register.apply(history.now, history.now.epoch + 1)
        assert answer.refusal.reason == logged.value.message


def test_every_reason_has_a_row() -> None:
    rows = {code for _, code, _ in REFUSALS.values()}
    assert rows == set(JoinCode) - {JoinCode.METADATA, JoinCode.REJECTED}


def test_who_fits_passes_and_is_accepted_by_the_entry() -> None:
    history = cluster()
    answer = judge(history.now, presented(cluster_id="cluster-1"))
    assert answer == JoinAnswer(100, Verdict.PASSED, basis=basis_of(history.now))
    history.submit(WANTED)
    again = judge(history.now, presented())
    assert again == JoinAnswer(100, Verdict.ACCEPTED, NodeId(6), history.now.epoch)


def test_a_node_that_waits_to_join_presents_itself_again_from_elsewhere() -> None:
    history = cluster()
    moved = msgspec.structs.replace(WANTED, host_id="host-4", address="10.0.0.44", version="2", attempt=51)
    assert judge(history.now, presented(moved)).verdict is Verdict.PASSED
    history.submit(moved)
    node = history.now.directory.by_host_id["host-4"]
    assert (node.id, node.address, node.version, node.attempt) == (4, "10.0.0.44", "2", 51)
    assert node.accepted_epoch == node.epoch == history.now.epoch
    late = history.tried(msgspec.structs.replace(moved, address="10.0.0.4", attempt=50))
    assert late is not None and "presented itself later" in late.message
    assert history.replayed() == history.now


def test_members_that_are_gone_or_shut_out_send_newcomers_on() -> None:
    history = cluster()
    assert not unfit(history.now, "host-1")
    assert "has left" in unfit(history.now, "host-5")
    assert "no member" in unfit(history.now, "host-9")
    history.submit(ExcludeNodes((NodeId(2),), "suspect"))
    assert "excluded" in unfit(history.now, "host-2")
    assert "no cluster" in unfit(History().now, "host-1")


# -- the machine -----------------------------------------------------------------------------------

BASIS = Basis(7, b"h" * 32, (("schema", b"s"),))
REFUSAL = JoinRefusal(JoinCode.ADDRESS, "it is taken")


def at(phase: Phase, attempt: int = 5) -> JoinState:
    state = JoinState(attempt)
    if phase is Phase.ASKING:
        return state
    state = told_terms(state)
    if phase is Phase.PRESENTED:
        return state
    state = answered(state, JoinAnswer(attempt, Verdict.PASSED, basis=BASIS))
    return state if phase is Phase.BASICALLY_VALIDATED else compared(state, BASIS)


def test_a_node_joins_through_its_phases() -> None:
    state = first_attempt(3)
    seen = [state.phase]
    state = told_terms(state)
    seen.append(state.phase)
    state = answered(state, JoinAnswer(state.attempt, Verdict.PASSED, basis=BASIS))
    seen.append(state.phase)
    state = compared(state, BASIS)
    seen.append(state.phase)
    state = answered(state, JoinAnswer(state.attempt, Verdict.ACCEPTED, NodeId(4), 12))
    assert [*seen, state.phase] == [
        "asking", "presented", "basically_validated", "metadata_validated", "joined"
    ]  # fmt: skip
    assert (state.node, state.epoch) == (4, 12)


def test_attempts_of_later_starts_are_larger() -> None:
    state = first_attempt(3)
    for _ in range(100):
        state = given_up(told_terms(state), "lost")
    assert first_attempt(3).attempt < state.attempt < first_attempt(4).attempt


@pytest.mark.parametrize("phase", [Phase.PRESENTED, Phase.METADATA_VALIDATED])
@pytest.mark.parametrize("verdict", list(Verdict))
def test_an_answer_to_another_attempt_changes_nothing(phase: Phase, verdict: Verdict) -> None:
    state = at(phase)
    for attempt in (state.attempt - 1, state.attempt + 1, 0):
        assert answered(state, JoinAnswer(attempt, verdict, NodeId(9), 9, BASIS, REFUSAL, "x")) is state


@pytest.mark.parametrize("phase", [Phase.ASKING, Phase.BASICALLY_VALIDATED])
@pytest.mark.parametrize("verdict", list(Verdict))
def test_who_has_asked_nothing_is_told_nothing(phase: Phase, verdict: Verdict) -> None:
    """An answer that comes twice finds the attempt further on, or begun again."""
    state = first_attempt(3) if phase is Phase.ASKING else at(phase)
    assert answered(state, JoinAnswer(state.attempt, verdict, NodeId(9), 9, BASIS, REFUSAL, "x")) is state


def test_other_metadata_keeps_a_node_out_and_names_what_differs() -> None:
    state = at(Phase.BASICALLY_VALIDATED)
    for own, text in (
        (Basis(7, b"x" * 32), "another entry of epoch 7"),
        (Basis(7, b"h" * 32, (("schema", b"t"),)), "differs here in schema"),
    ):
        refused = compared(state, own)
        assert refused.phase is Phase.REFUSED and refused.refusal is not None
        assert refused.refusal.code is JoinCode.METADATA and text in refused.refusal.reason
    assert compared(state, Basis(7, b"h" * 32)).phase is Phase.METADATA_VALIDATED
    assert [comparison.name for comparison in COMPARISONS] == ["history", "parts"]


def test_the_comparison_of_real_values_finds_the_part() -> None:
    one, other = started([(1,), (2,)], ("a", simple(1))), started([(1,), (2,)], ("b", simple(1)))
    mine = msgspec.structs.replace(basis_of(one.now), hash=other.now.hash)
    assert difference(basis_of(one.now), basis_of(one.now)) == ""
    assert "schema" in difference(mine, basis_of(other.now))


def test_what_cannot_be_believed_comes_to_nothing() -> None:
    state = at(Phase.METADATA_VALIDATED)
    for answer in (JoinAnswer(5, Verdict.ACCEPTED), JoinAnswer(5, Verdict.REFUSED)):
        after = answered(state, answer)
        assert after.phase is Phase.ASKING and after.attempt == 6 and after.reason
    assert answered(at(Phase.ASKING), JoinAnswer(5, Verdict.ACCEPTED, NodeId(1), 1)) == at(Phase.ASKING)


@pytest.mark.parametrize("phase", [Phase.PRESENTED, Phase.METADATA_VALIDATED])
def test_the_next_attempt_says_why_the_last_came_to_nothing_until_it_moves_on(phase: Phase) -> None:
    again = answered(at(phase), JoinAnswer(5, Verdict.LATER, reason="no leader"))
    assert (again.phase, again.attempt, again.reason) == (Phase.ASKING, 6, "no leader")
    assert (again.basis, again.node, again.epoch, again.refusal) == (Basis(), 0, 0, None)
    on = told_terms(again)
    assert (on.phase, on.attempt, on.reason) == (Phase.PRESENTED, 6, "")


@pytest.mark.parametrize(
    "state",
    [
        JoinState(0),
        JoinState(5, Phase.JOINED, BASIS, epoch=9),
        JoinState(5, Phase.JOINED, BASIS, NodeId(4)),
        JoinState(5, Phase.PRESENTED, node=NodeId(4), epoch=9),
        JoinState(5, Phase.REFUSED),
        JoinState(5, Phase.PRESENTED, refusal=REFUSAL),
        JoinState(5, Phase.BASICALLY_VALIDATED),
        JoinState(5, Phase.METADATA_VALIDATED),
    ],
)
def test_a_state_that_contradicts_its_phase_is_not_valid(state: JoinState) -> None:
    with pytest.raises(AssertionError):
        state.validate()


@pytest.mark.parametrize("phase", ENDS)
def test_what_has_ended_or_used_up_its_attempts_is_not_tried_again(phase: Phase) -> None:
    ended = msgspec.structs.replace(at(Phase.PRESENTED), phase=phase)
    last = JoinState(first_attempt(2).attempt - 2, Phase.PRESENTED)
    for state in (ended, last):
        with pytest.raises(AssertionError):
            given_up(state, "once more")
    assert given_up(msgspec.structs.replace(last, attempt=last.attempt - 1), "once more").attempt > 0


@pytest.mark.parametrize("seed", range(200))
def test_lost_doubled_and_reordered_answers_never_make_a_member_of_nobody(seed: int) -> None:
    """A joiner and a cluster over a network that loses, doubles and reorders, with restarts of the joiner:
    it ends as the node that the log accepted, under the attempt that the log has."""
    rng = random.Random(seed)
    history = cluster()
    start, state = 1, first_attempt(1)
    wire: list[JoinAnswer] = []
    for _ in range(300):
        if state.phase in ENDS:
            break
        register = msgspec.structs.replace(WANTED, attempt=state.attempt)
        draw = rng.random()
        if draw < 0.1:
            start += 1
            state = first_attempt(start)
        elif draw < 0.2 and state.phase is not Phase.ASKING:
            state = given_up(state, "no answer")
        elif state.phase is Phase.ASKING:
            state = told_terms(state)
        elif state.phase is Phase.BASICALLY_VALIDATED:
            state = compared(state, Basis(state.basis.epoch, history.values[state.basis.epoch].hash))
        else:
            answer = judge(history.now, presented(register))
            if answer.verdict is Verdict.PASSED and state.phase is Phase.METADATA_VALIDATED:
                history.submit(register)
                answer = judge(history.now, presented(register))
            if rng.random() < 0.7:
                wire.extend([answer] * rng.choice((1, 1, 2)))
        if wire and rng.random() < 0.8:
            state = answered(state, wire.pop(rng.randrange(len(wire))))
        state.validate()
    assert state.phase is Phase.JOINED
    node = history.now.directory.by_host_id["host-9"]
    assert (state.node, state.attempt) == (node.id, node.attempt)
    assert state.epoch == node.accepted_epoch <= history.now.epoch


def test_an_attempt_has_one_entry_whoever_submits_it() -> None:
    assert entry_id(WANTED) == entry_id(msgspec.structs.replace(WANTED, address="10.9.9.9"))
    assert entry_id(WANTED) != entry_id(msgspec.structs.replace(WANTED, attempt=101))
    assert len(entry_id(WANTED)) == 16


def test_the_table_leads_every_attempt_to_an_end() -> None:
    assert {phase for phase, _ in TABLE} == set(Phase) - set(ENDS)
    for phase in set(Phase) - set(ENDS):
        assert (phase, Event.LATER) in TABLE, "whoever waits may be left without an answer"
    joins = {event for (_, event), target in TABLE.items() if target is Phase.JOINED}
    assert joins == {Event.ACCEPTED}
    assert mermaid().count("-->") == len(TABLE) + 1 + len(ENDS)
    assert Founder("h", "a", 1, 2, 3, "d", "r", ()).features == BASE_FEATURES


@pytest.mark.parametrize(
    "state",
    [
        JoinState(1),
        JoinState(5, Phase.JOINED, BASIS, NodeId(1), 1),
        JoinState(5, Phase.REFUSED, refusal=REFUSAL),
        JoinState(5, Phase.METADATA_VALIDATED, Basis(1)),
    ],
)
def test_the_least_that_a_phase_asks_for_is_valid(state: JoinState) -> None:
    state.validate()
