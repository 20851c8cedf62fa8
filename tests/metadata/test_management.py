"""The management group's state machine against a slow twin, and the words and steps of groups."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lockstep.metadata.groups import management
from lockstep.metadata.groups.management import (
    EMPTY_STATE,
    Action,
    Admit,
    Command,
    Expel,
    Former,
    Found,
    Host,
    ManagementState,
    RecordVoters,
    Repair,
    apply,
    decode_command,
    decode_state,
    encode_command,
    encode_state,
    lineage_problem,
)
from lockstep.metadata.groups.membership_step import (
    GroupConfigure,
    HandOver,
    Members,
    Settled,
    WaitFor,
    group_next_step,
)
from lockstep.metadata.groups.service import (
    GlobalState,
    GroupPart,
    LocalFacts,
    LocalState,
    global_state,
    has_majority,
    local_state,
    part_of,
)
from lockstep.values import codec
from lockstep.values.errors import CannotApply

HOSTS = [Host(f"h{number}", f"127.0.0.{number}", 7000) for number in range(1, 5)]


def command(number: int, action: Action, base_index: int = 0) -> Command:
    return Command(number.to_bytes(16, "big"), base_index, "test", action)


def founded() -> ManagementState:
    return apply(EMPTY_STATE, 1, command(1, Found("c1", "town", (HOSTS[0],))))


def code(state: ManagementState, number: int) -> str:
    outcome = state.outcome_of(number.to_bytes(16, "big"))
    assert outcome is not None
    return outcome.refusal.code if outcome.refusal is not None else ""


# -- a twin: plain dictionaries, commands judged one by one, ids never forgotten


class Twin:
    def __init__(self) -> None:
        self.ids: dict[bytes, str] = {}
        self.cluster = ""
        self.nodes: dict[str, tuple[str, int, int]] = {}
        self.gone: list[str] = []
        self.voters: tuple[Any, ...] = ((0, 0, 0), ())

    def apply(self, given: Command) -> None:
        if given.id not in self.ids:
            self.ids[given.id] = self.judge(given.action)

    def judge(self, action: Action) -> str:
        if isinstance(action, Found):
            if self.cluster:
                return "ALREADY_FOUNDED"
            self.cluster = action.cluster_id
            for host in action.hosts:
                self.nodes[host.host_id] = (host.address, host.port, host.node_id)
            return ""
        if isinstance(action, Expel):
            if action.host_id in self.gone:
                return ""
            if action.host_id not in self.nodes:
                return "NOT_ADMITTED"
            del self.nodes[action.host_id]
            self.gone.append(action.host_id)
            return ""
        if not self.cluster:
            return "NOT_FOUNDED"
        if isinstance(action, RecordVoters):
            version = (action.recovery_generation, action.epoch, action.configuration_index)
            if version < self.voters[0]:
                return "STALE"
            if version == self.voters[0]:
                return "" if action.voters == self.voters[1] else "CONFLICT"
            self.voters = (version, action.voters)
            return ""
        return self.admit(action.host)

    def admit(self, host: Host) -> str:
        if host.host_id in self.gone:
            return "EXPELLED"
        known = self.nodes.get(host.host_id, ("", 0, 0))
        if known[2] and host.node_id not in (0, known[2]):
            return "CONFLICT"
        for other, (_, _, node_id) in self.nodes.items():
            if other != host.host_id and node_id and node_id == host.node_id:
                return "CONFLICT"
        self.nodes[host.host_id] = (host.address, host.port, host.node_id or known[2])
        return ""


hosts = st.builds(
    lambda host, node_id: msgspec.structs.replace(host, node_id=node_id),
    st.sampled_from(HOSTS),
    st.integers(0, 3),
)
actions = st.one_of(
    st.builds(Found, st.sampled_from(["c1", "c2"]), st.just("town"), st.tuples(st.sampled_from(HOSTS))),
    st.builds(Admit, hosts, st.integers(0, 5)),
    st.builds(Admit, hosts, st.integers(0, 5)),
    st.builds(Expel, st.sampled_from([host.host_id for host in HOSTS])),
    st.builds(
        RecordVoters,
        st.sampled_from([(1,), (1, 2), (2, 3)]),
        st.integers(0, 2),
        st.integers(1, 2),
        st.integers(0, 1),
    ),
)


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(1, 12), actions, st.integers(1, 3)), max_size=24))
@settings(max_examples=150, deadline=None)
def test_the_state_machine_equals_its_twin(steps: list[tuple[int, Action, int]]) -> None:
    state, twin, index = EMPTY_STATE, Twin(), 0
    for number, action, gap in steps:
        given_command = decode_command(encode_command(command(number, action)))
        index += gap  # Other entries of the group lie in between.
        before = state
        state = apply(state, index, given_command)
        twin.apply(given_command)
        state.validate()
        assert apply(before, index, given_command) == state, "same state and command, another result"
    assert state.cluster_id == twin.cluster
    assert {n.host_id: (n.address, n.port, n.node_id) for n in state.nodes} == twin.nodes
    assert list(state.expelled) == sorted(twin.gone)
    assert (state.voters.version, state.voters.voters) == twin.voters
    kept = {o.id: o.refusal.code if o.refusal is not None else "" for o in state.outcomes}
    assert kept == twin.ids
    restored = decode_state(encode_state(state))
    assert restored == state
    assert restored.digest == state.digest


def test_a_retried_command_is_applied_once() -> None:
    first = apply(founded(), 2, command(2, Admit(HOSTS[1], 7)))
    expelled = apply(first, 3, command(3, Expel("h2")))
    again = apply(expelled, 4, command(2, Admit(HOSTS[1], 7)))
    assert "h2" not in again.by_host_id
    outcome = again.outcome_of(command(2, Admit(HOSTS[1], 7)).id)
    assert outcome is not None
    assert outcome.index == 2
    assert again.hash != expelled.hash, "the chain covers every command"


def test_an_id_that_is_no_longer_kept_is_refused_for_its_age(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(management, "MANAGEMENT_OUTCOMES_MAX", 3)
    state = founded()
    for number in range(2, 7):
        state = apply(state, number, command(number, Admit(HOSTS[1], 1), base_index=number - 1))
    state.validate()
    late = apply(state, 7, command(1, Admit(HOSTS[2], 1), base_index=0))
    assert code(late, 1) == "EXPIRED"
    assert "h3" not in late.by_host_id


VOTERS = RecordVoters((1, 2), 5, 7, 1)


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        (Found("c2", "town", (HOSTS[1],)), "ALREADY_FOUNDED"),
        (Admit(msgspec.structs.replace(HOSTS[1], host_id=""), 1), "INVALID"),
        (Admit(msgspec.structs.replace(HOSTS[1], address=""), 1), "INVALID"),
        (Admit(msgspec.structs.replace(HOSTS[1], port=0), 1), "INVALID"),
        (Admit(msgspec.structs.replace(HOSTS[1], port=1), 1), ""),
        (Admit(HOSTS[2], 1), "EXPELLED"),
        (Admit(msgspec.structs.replace(HOSTS[0], node_id=4), 1), "CONFLICT"),
        (Admit(msgspec.structs.replace(HOSTS[0], node_id=3), 1), ""),
        (Admit(msgspec.structs.replace(HOSTS[1], node_id=3), 1), "CONFLICT"),
        (Admit(HOSTS[0], 9), ""),
        (Expel("h2"), "NOT_ADMITTED"),
        (Expel("h3"), ""),
        (RecordVoters((), 9, 9), "INVALID"),
        (RecordVoters((2, 1), 9, 9, 2), "INVALID"),
        (RecordVoters((1, 1), 9, 9, 2), "INVALID"),
        (RecordVoters((1, 2), 4, 7, 1), "STALE"),
        (RecordVoters((1, 2), 9, 6, 1), "STALE"),
        (RecordVoters((1, 2), 9, 9, 0), "STALE"),
        (RecordVoters((1, 3), 5, 7, 1), "CONFLICT"),
        (VOTERS, ""),
        (RecordVoters((1, 3), 6, 7, 1), ""),
        (RecordVoters((1, 3), 0, 8, 1), ""),
        (RecordVoters((1, 3), 0, 0, 2), ""),
    ],
)
def test_what_each_command_comes_to(action: Action, expected: str) -> None:
    """h1 is node 3, h3 was expelled, and voters are recorded."""
    state = founded()
    before: list[Action] = [
        Admit(msgspec.structs.replace(HOSTS[0], node_id=3), 2), Admit(HOSTS[2], 2), Expel("h3"), VOTERS,
    ]  # fmt: skip
    for index, one in enumerate(before, 2):
        state = apply(state, index, command(index, one))
        assert code(state, index) == ""
    after = apply(state, 20, command(20, action))
    after.validate()
    assert code(after, 20) == expected and (after.index, after.hash != state.hash) == (20, True)
    refused = after.outcomes[-1].refusal
    assert bool(expected) is (refused is not None and bool(refused.message))
    unchanged = action in (VOTERS, Expel("h3"), Admit(HOSTS[0], 9)) or expected
    if unchanged or action == before[0]:
        kept = msgspec.structs.replace(after, index=state.index, hash=state.hash, outcomes=state.outcomes)
        assert kept == state, "a refusal, or what is so already, changes nothing"
    elif isinstance(action, RecordVoters):
        assert after.voters.voters == action.voters and after.voters.index == 20
        told = (action.recovery_generation, action.epoch, action.configuration_index)
        assert after.voters.version == told


def test_a_node_keeps_the_moment_of_its_first_admission_and_its_id() -> None:
    state = apply(founded(), 2, command(2, Admit(HOSTS[1], 4)))
    assert state.nodes[1] == management.AdmittedNode("h2", "127.0.0.2", 7000, 0, 4, 2)
    moved = msgspec.structs.replace(HOSTS[1], address="127.0.0.9", port=7001, node_id=8)
    state = apply(state, 3, command(3, Admit(moved, 6)))
    assert state.nodes[1] == management.AdmittedNode("h2", "127.0.0.9", 7001, 8, 4, 2)
    state = apply(state, 4, command(4, Admit(HOSTS[1], 7)))
    assert state.nodes[1] == management.AdmittedNode("h2", "127.0.0.2", 7000, 8, 4, 2)
    assert state.nodes[0] == management.AdmittedNode("h1", "127.0.0.1", 7000, 0, 0, 1)


@pytest.mark.parametrize(
    ("action", "why"),
    [
        (Admit(HOSTS[0], 1), "NOT_FOUNDED"),
        (VOTERS, "NOT_FOUNDED"),
        (Expel("h1"), "NOT_ADMITTED"),
        (Found("", "town", (HOSTS[0],)), "INVALID"),
        (Found("c", "", (HOSTS[0],)), "INVALID"),
        (Found("c", "town", ()), "INVALID"),
        (Found("c", "town", (HOSTS[0], Host("h9", "", 7000))), "INVALID"),
        (Found("c", "town", (HOSTS[0],), former=(Former("c"),)), "INVALID"),
        (Found("c", "town", (HOSTS[0],), former=(Former("b"), Former("b"))), "INVALID"),
    ],
)
def test_a_group_without_a_cluster_takes_no_command_but_a_sound_founding(action: Action, why: str) -> None:
    state = apply(EMPTY_STATE, 3, command(1, action))
    assert code(state, 1) == why and not state.lineage and not state.nodes and state.cluster_id == ""


def test_a_cluster_has_no_more_nodes_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(management, "NODES_MAX", 2)
    state = apply(founded(), 2, command(2, Admit(HOSTS[1], 1)))
    state = apply(state, 3, command(3, Admit(HOSTS[2], 1)))
    assert (code(state, 2), code(state, 3)) == ("", "FULL")
    again = apply(state, 4, command(4, Admit(msgspec.structs.replace(HOSTS[1], port=9), 1)))
    assert code(again, 4) == "", "who is in may move"


SOUND = apply(apply(founded(), 2, command(2, Admit(HOSTS[1], 1))), 3, command(3, VOTERS))


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"nodes": SOUND.nodes[::-1]}, "sorted and unique"),
        ({"nodes": SOUND.nodes[:1] * 2}, "sorted and unique"),
        ({"nodes": tuple(msgspec.structs.replace(n, node_id=1) for n in SOUND.nodes)}, "one host"),
        ({"expelled": ("h9", "h8")}, "expelled hosts are sorted"),
        ({"expelled": ("h9", "h9")}, "expelled hosts are sorted"),
        ({"expelled": ("h1",)}, "is not admitted"),
        ({"lineage": SOUND.lineage * 2}, "the lineage is broken at cluster c1"),
        ({"lineage": (msgspec.structs.replace(SOUND.lineage[0], hash=bytes(32)),)}, "the lineage is broken"),
        ({"lineage": (), "nodes": ()}, "identity comes first"),
        ({"lineage": (), "voters": management.VotersRecord()}, "identity comes first"),
        ({"outcomes": SOUND.outcomes[::-1]}, "one outcome for an index"),
        ({"outcomes": SOUND.outcomes[:1] * 2}, "one outcome for an index"),
        ({"outcomes": tuple(msgspec.structs.replace(o, id=b"x" * 16) for o in SOUND.outcomes)}, "for an id"),
        ({"forgotten_index": 1}, "outcomes are recent"),
        ({"index": 2}, "outcomes are recent"),
        ({"voters": management.VotersRecord((2, 1))}, "voters are sorted"),
        ({"voters": management.VotersRecord((1, 1))}, "voters are sorted"),
    ],
)
def test_a_state_that_contradicts_itself_is_noticed(changed: dict[str, Any], why: str) -> None:
    SOUND.validate()
    with pytest.raises(AssertionError, match=why):
        msgspec.structs.replace(SOUND, **changed).validate()


def test_a_state_keeps_as_many_outcomes_as_the_limit_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(management, "MANAGEMENT_OUTCOMES_MAX", 3)
    SOUND.validate()
    more = apply(SOUND, 9, command(9, Admit(HOSTS[2], 1)))
    more.validate()
    assert [one.index for one in more.outcomes] == [2, 3, 9] and more.forgotten_index == 1
    assert not more.is_known(command(1, VOTERS).id) and more.is_known(command(2, VOTERS).id)
    assert more.outcome_of(command(1, VOTERS).id) is None
    known = apply(more, 10, command(10, Admit(HOSTS[3], 1), base_index=1))
    assert code(known, 10) == "", "it was sent when all later ids were kept"
    with pytest.raises(AssertionError, match="bounded"):
        msgspec.structs.replace(more, outcomes=(*SOUND.outcomes[:1], *more.outcomes)).validate()
    with pytest.raises(AssertionError, match="in order"):
        apply(more, 9, command(11, VOTERS))


def test_an_expelled_host_stays_out() -> None:
    state = apply(founded(), 2, command(2, Expel("h1")))
    state = apply(state, 3, command(3, Admit(HOSTS[0], 1)))
    assert code(state, 3) == "EXPELLED"


def test_a_new_group_continues_the_lineage_of_the_old() -> None:
    repair = Repair("reset", "operator", b"plan")
    state = apply(
        EMPTY_STATE, 1, command(1, Found("c2", "town", (HOSTS[0],), repair, (Former("c1", Repair()),)))
    )
    assert [link.cluster_id for link in state.lineage] == ["c1", "c2"]
    assert state.lineage[0] == founded().lineage[0]
    assert state.lineage[1].repair == repair
    forged = (state.lineage[0], msgspec.structs.replace(state.lineage[1], cluster_id="c3"))
    assert "c3" in lineage_problem(forged)


def test_a_second_founding_is_refused_and_changes_nothing() -> None:
    state = apply(founded(), 2, command(2, Found("c2", "town", (HOSTS[1],))))
    assert code(state, 2) == "ALREADY_FOUNDED"
    assert state.cluster_id == "c1"


def test_a_damaged_snapshot_is_refused() -> None:
    data = bytearray(encode_state(founded()))
    data[data.index(b"town")] ^= 1
    with pytest.raises(CannotApply, match="damaged"):
        decode_state(bytes(data))
    with pytest.raises(CannotApply, match="cannot be read"):
        decode_state(bytes(data[:-1]))
    image = management._Image(management.SNAPSHOT_FORMAT + 1, founded().digest, founded())
    with pytest.raises(CannotApply, match="another version"):
        decode_state(codec.encode(image))


# -- words


@pytest.mark.parametrize(
    ("facts", "word"),
    [
        (LocalFacts(True, True, True, 1, 2), LocalState.BROKEN),
        (LocalFacts(False, False, True, 0, 2), LocalState.SNAPSHOT_INSTALLATION),
        (LocalFacts(False, False, False, 0, 0), LocalState.INITIALIZING),
        (LocalFacts(False, True, False, 1, 2), LocalState.CATCHING_UP),
        (LocalFacts(False, True, False, 2, 2), LocalState.HEALTHY),
    ],
)
def test_the_local_word(facts: LocalFacts, word: LocalState) -> None:
    assert local_state(facts) is word


@pytest.mark.parametrize(
    ("voters", "available", "outgoing", "word"),
    [
        ((1, 2, 3), (1, 2, 3), (), GlobalState.AVAILABLE),
        ((1, 2, 3), (1, 2, 9), (), GlobalState.DEGRADED),
        ((1, 2, 3), (1, 9), (), GlobalState.UNAVAILABLE),
        ((1, 2), (1,), (), GlobalState.UNAVAILABLE),
        ((1,), (1,), (), GlobalState.AVAILABLE),
        ((), (1,), (), GlobalState.UNAVAILABLE),
        ((1, 2, 3), (1, 2, 3), (4, 5, 6), GlobalState.UNAVAILABLE),
        ((1, 2, 3), (1, 2, 3), (1, 2, 4), GlobalState.DEGRADED),
    ],
)
def test_the_global_word(
    voters: tuple[int, ...], available: tuple[int, ...], outgoing: tuple[int, ...], word: GlobalState
) -> None:
    assert global_state(voters, available, outgoing) is word


def test_a_member_votes_or_learns() -> None:
    assert (part_of(1, (1, 2)), part_of(3, (1, 2))) == (GroupPart.VOTER, GroupPart.LEARNER)
    assert str(GroupPart.VOTER) == "voting member"


# -- members


@pytest.mark.slow
@given(
    st.sets(st.integers(1, 9), min_size=1, max_size=7),
    st.sets(st.integers(1, 9), min_size=1, max_size=7),
    st.sets(st.integers(1, 9), max_size=3),
    st.data(),
)
@settings(max_examples=200, deadline=None)
def test_any_members_become_the_wanted_ones_step_by_step(
    wanted: set[int], start: set[int], learners: set[int], data: st.DataObject
) -> None:
    members = Members(tuple(sorted(start)), tuple(sorted(learners - start)))
    leader, caught_up = data.draw(st.sampled_from(sorted(start))), set(start)
    for _ in range(60):
        step = group_next_step(wanted, members, caught_up, leader)
        if isinstance(step, Settled):
            break
        if isinstance(step, WaitFor):
            assert step.member not in caught_up
            caught_up.add(step.member)
        elif isinstance(step, HandOver):
            assert step.target in wanted
            assert step.target in members.voters
            leader = step.target
        else:
            assert isinstance(step, GroupConfigure)
            after = step.members
            changed = set(after.voters) ^ set(members.voters)
            assert len(changed) <= 1, "one at a time"
            assert changed - set(members.voters) <= caught_up, "votes before it caught up"
            assert leader in after.voters, "a leader removed itself"
            assert after.voters and len(after.voters) <= 7
            assert len(after.voters) >= min(len(wanted), len(start), 6) or not has_majority(
                members.voters, caught_up
            )
            members = after
    assert members == Members(tuple(sorted(wanted)))


@pytest.mark.slow
@given(
    st.sets(st.integers(1, 9), min_size=1, max_size=7),
    st.sets(st.integers(1, 9), min_size=1, max_size=7),
    st.sets(st.integers(1, 9), min_size=1, max_size=2),
)
@settings(max_examples=200, deadline=None)
def test_the_dead_hold_nobody_up_who_is_to_go(wanted: set[int], start: set[int], dead: set[int]) -> None:
    """The dead never catch up: all that live become members, and who is to go goes."""
    assume(wanted & start - dead and has_majority(sorted(start), start - dead))
    assume(has_majority(sorted(wanted), wanted - dead))
    members, leader = Members(tuple(sorted(start))), min(wanted & start - dead)
    for _ in range(60):
        caught_up = {member for member in (*members.voters, *members.learners) if member not in dead}
        step = group_next_step(wanted, members, caught_up, leader, dead)
        if not isinstance(step, GroupConfigure):
            break
        members = step.members
        assert has_majority(members.voters, set(members.voters) - dead), "the living decide"
    absent = wanted & dead - start
    assert members == Members(tuple(sorted(wanted - absent)), tuple(sorted(absent)))
    assert step == (WaitFor(min(absent)) if absent else Settled())
