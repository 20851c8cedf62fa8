"""Groups under seeded chaos keep every promise, and each planted fault is found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

import pytest

from lockstep.consensus import elections, quorum, raft, replication, snapshots
from lockstep.consensus.configuration import Configuration, ConfigurationHistory
from lockstep.consensus.events import Campaign, Propose, Tick
from lockstep.consensus.log import Log
from lockstep.consensus.state import RaftState, Writes
from tests.consensus.raft_history import Violation
from tests.consensus.raft_simulator import Group, Weather, simulate

SEEDS = 600
WEATHERS: tuple[Weather, ...] = ("mixed", "storm", "snapshots", "changes")
#: How many seeds a planted fault may stay hidden. The rarest one needs some hundred.
PLANTED_SEEDS_MAX = 2000


#: What must happen somewhere in the seeds; otherwise they prove nothing about it.
SOMETIMES = (
    "another snapshot replaces the one arriving",
    "append rejected",
    "change in two steps",
    "change of one voter",
    "chunk cannot be read",
    "chunk in the middle",
    "chunk or its answer lost",
    "chunk stored",
    "chunk that is not wanted",
    "crash loses writes",
    "joint configuration committed",
    "leader becomes a learner",
    "leader elected",
    "leader removes itself",
    "leadership handed over",
    "learner becomes a voter",
    "learner in a committed configuration",
    "log reached the snapshot first",
    "read answered",
    "read refused",
    "refused: configuration-pending",
    "refused: not-a-voter",
    "refused: term-not-committed",
    "refused: too-much-uncommitted",
    "refused: transferring",
    "snapshot installed",
    "snapshot installed by a learner",
    "snapshot is present",
    "snapshot with a changed configuration",
    "stored bytes damaged",
    "transfer goes on under a new leader",
    "transfer resumed",
    "voter becomes a learner",
)


@pytest.mark.slow
def test_every_seed_keeps_all_promises_and_settles_after_healing() -> None:
    groups = [simulate(seed, WEATHERS[seed % len(WEATHERS)]) for seed in range(SEEDS)]
    assert sum(len(group.history.leaders) for group in groups) > 2 * SEEDS
    assert sum(group.history.committed_max for group in groups) > 10 * SEEDS
    seen = sum((group.seen for group in groups), Counter[str]())
    never = [name for name in SOMETIMES if not seen[name]]
    assert not never, f"vacuous: never happened in {SEEDS} seeds: {never}"
    assert sorted(seen) == sorted(SOMETIMES), "every counted thing is expected"


def test_the_same_seed_gives_the_same_history() -> None:
    first, second = simulate(11), simulate(11)
    assert first.steps == second.steps
    assert first.history.committed == second.history.committed
    assert first.history.leaders == second.history.leaders


#: The first seed that found a fault when this was written, where it is not one of the first: looking begins
#: there. A change of the machine moves all seeds, and then looking goes on from the beginning.
FOUND_AT = {
    "asks for votes before its own is durable": 386,
    "forgets its vote": 823,
    "trusts_writes_of_truncated_entries": 576,
    "answers_reads_without_asking_a_quorum": 380,
    "counts_only_the_new_voters_of_a_joint_configuration": 135,
    "takes_a_chunk_at_the_wrong_offset": 658,
    "installs_a_snapshot_without_its_configuration": 111,
    "installs_snapshots_that_the_log_has_passed": 76,
}


def is_found(fault: str, bugs: frozenset[str] = frozenset()) -> bool:
    """Whether safety checks fail for a seed; the settling at the end is left out, it finds other things."""
    first = FOUND_AT.get(fault, 0)
    return any(fails(seed, bugs) for seed in (first, *range(PLANTED_SEEDS_MAX)))


def fails(seed: int, bugs: frozenset[str]) -> bool:
    try:
        Group(seed, bugs, WEATHERS[seed % len(WEATHERS)]).run(1500)
    except AssertionError:
        return True
    return False


@pytest.mark.parametrize(
    "bug",
    [
        "acknowledges before persisting",
        "leader counts itself before persisting",
        "asks for votes before its own is durable",
        "forgets its vote",
        "says that a snapshot is present",
        "installs the first part",
    ],
)
def test_a_driver_that_breaks_the_contract_is_found(bug: str) -> None:
    assert is_found(bug, frozenset({bug}))


def votes_twice(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(elections, "may_vote_for", lambda state, candidate: True)
    patch.setattr(RaftState, "cast_vote", lambda self, candidate: setattr(self, "vote", candidate))


def counts_too_small_a_quorum(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(quorum, "majority", lambda count: max(1, count // 2))


def votes_without_looking_at_the_log(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Log, "is_current", lambda self, last_index, last_term: True)


def trusts_writes_of_truncated_entries(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Writes, "truncate", lambda self, last_index: None)
    patch.setattr(RaftState, "validate", lambda self: None)


def changes_many_voters_in_one_step(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(raft, "first_step", lambda current, target: target)


def changes_members_while_a_change_is_pending(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(raft, "is_change_pending", lambda state: False)


def answers_reads_without_asking_a_quorum(patch: pytest.MonkeyPatch) -> None:
    def confirm(state: RaftState) -> None:
        state.read_states.extend(state.reads.confirm(state.reads.round))

    patch.setattr(raft, "confirm", confirm)


def answers_reads_before_its_term_is_committed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RaftState, "is_term_committed", property(lambda self: True))


def counts_a_removed_voter(patch: pytest.MonkeyPatch) -> None:
    """Members that the configuration no longer names stay in the count."""

    def agreed(configuration: Configuration, values: Mapping[int, int]) -> int:
        if not configuration.voters:
            return 0
        return sorted(values.values(), reverse=True)[: quorum.majority(len(configuration.voters))][-1]

    track_members = replication.track_members

    def keeping(state: RaftState) -> None:
        known = dict(state.progress)
        track_members(state)
        state.progress = {**known, **state.progress}

    patch.setattr(quorum, "agreed_value", agreed)
    patch.setattr(replication, "track_members", keeping)
    patch.setattr(RaftState, "validate", lambda self: None)


def counts_only_the_new_voters_of_a_joint_configuration(patch: pytest.MonkeyPatch) -> None:
    agreed, result = quorum.agreed_value, quorum.vote_result
    patch.setattr(quorum, "agreed_value", lambda c, values: agreed(Configuration(c.voters), values))
    patch.setattr(quorum, "vote_result", lambda c, votes: result(Configuration(c.voters), votes))


def takes_a_chunk_at_the_wrong_offset(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(snapshots, "is_wanted", lambda incoming, offset, length: True)


def installs_a_snapshot_without_its_configuration(patch: pytest.MonkeyPatch) -> None:
    def reset(self: ConfigurationHistory, index: int, _configuration: Configuration) -> None:
        self._items = [(index, self.current)]

    patch.setattr(ConfigurationHistory, "reset", reset)


def takes_snapshots_without_their_configuration(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ConfigurationHistory, "at", lambda self, index: self._items[0][1])


def installs_snapshots_that_the_log_has_passed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(snapshots, "_is_needed", lambda state, snapshot: True)
    patch.setattr(snapshots, "drop_overtaken", lambda state: None)


@pytest.mark.parametrize(
    "plant",
    [
        votes_twice,
        counts_too_small_a_quorum,
        votes_without_looking_at_the_log,
        trusts_writes_of_truncated_entries,
        changes_many_voters_in_one_step,
        changes_members_while_a_change_is_pending,
        answers_reads_without_asking_a_quorum,
        answers_reads_before_its_term_is_committed,
        counts_a_removed_voter,
        counts_only_the_new_voters_of_a_joint_configuration,
        takes_a_chunk_at_the_wrong_offset,
        installs_a_snapshot_without_its_configuration,
        takes_snapshots_without_their_configuration,
        installs_snapshots_that_the_log_has_passed,
    ],
)
def test_a_fault_in_the_machine_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    assert is_found(plant.__name__)


def replace_a_majority_entry(group: Group) -> None:
    """An entry of an old term reaches a majority, then a leader that never saw it replaces it."""
    group.loss = group.double = 0.0
    one, two = group.members[1].raft, group.members[2].raft
    elect(group, 1)
    group.drain()
    group.step(1, Propose((b"old",)))
    lose_everything(group)

    group.isolate(1)
    elect(group, 3)
    lose_everything(group)

    group.isolate(3)
    elect(group, 1)
    group.drain_until(lambda: one.status().members[2].match == 2)
    lose_everything(group)
    assert group.members[2].disk.holds(2, 1), "a majority holds the old entry"

    group.isolate(1)
    elect(group, 3)
    group.drain()
    assert two.commit_index >= 2 and two.term_at(2) == 2, "the entry was replaced, as it may be"


def elect(group: Group, identity: int) -> None:
    """Make a member the leader of a term above all others; it learns of newer terms from its heartbeats."""
    raft = group.members[identity].raft
    newest = max(member.raft.term for member in group.members.values())
    for _ in range(20):
        if raft.is_leader and raft.term > newest:
            return
        group.step(identity, Campaign() if not raft.is_leader else Tick())
        group.drain_until(lambda: raft.is_leader and raft.term > newest)
    raise AssertionError("the member was not elected")


def lose_everything(group: Group) -> None:
    """All messages get lost; what was handed to the disks is written."""
    for identity, member in group.members.items():
        while member.writes:
            group.complete_write(identity)
    group.network.clear()


def test_an_entry_of_an_older_term_is_not_committed_by_counting_holders() -> None:
    replace_a_majority_entry(Group(1, weather="storm"))


def test_committing_entries_of_older_terms_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replication, "is_committable", lambda state, index: True)
    with pytest.raises(Violation):
        replace_a_majority_entry(Group(1, weather="storm"))
