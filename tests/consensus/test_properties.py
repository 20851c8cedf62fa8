"""The parts of the machine against twins too simple to be wrong, and a snapshot's way over a bad network."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.consensus.configuration import (
    VOTERS_MAX,
    Configuration,
    ConfigurationHistory,
    RaftSettings,
    first_step,
)
from lockstep.consensus.effects import HardState, Ready, Stored
from lockstep.consensus.events import (
    Campaign,
    ChunkStored,
    Compact,
    Event,
    Persisted,
    Propose,
    ProposeConfiguration,
    Received,
    SnapshotChunk,
    SnapshotFailed,
    SnapshotPresent,
    Tick,
)
from lockstep.consensus.log import Log
from lockstep.consensus.messages import (
    Append,
    AppendReply,
    Entry,
    EntryKind,
    InstallReply,
    InstallSnapshot,
    Message,
    Snapshot,
    TimeoutNow,
    decode_message,
    encode_message,
)
from lockstep.consensus.progress import Mode, Progress
from lockstep.consensus.raft import Raft
from lockstep.consensus.state import Role, Writes


def entry(index: int, term: int, data: bytes = b"x") -> Entry:
    return Entry(index, term, EntryKind.NORMAL, data)


def entries_of(terms: list[int], first: int = 1) -> tuple[Entry, ...]:
    return tuple(entry(index, term) for index, term in enumerate(terms, first))


TERMS = st.lists(st.integers(1, 4), max_size=8).map(sorted)


# -- the log


@pytest.mark.slow
@given(TERMS, TERMS)
@settings(max_examples=200, deadline=None)
def test_probing_by_hints_ends_at_the_last_common_entry(leaders: list[int], members: list[int]) -> None:
    """The leader's and the member's half of the hint together never skip the common part, and each rejected
    probe comes nearer."""
    leader, member = Log(0, 0, entries_of(leaders)), Log(0, 0, entries_of(members))
    common = 0
    while common < min(len(leaders), len(members)) and leaders[common] == members[common]:
        common += 1
    prev = leader.last_index
    for _ in range(len(leaders) + 1):
        term = leader.term_at(prev)
        assert term is not None
        if member.matches(prev, term):
            break
        hint_index, hint_term = member.agreement_limit(prev, term)
        limit = min(hint_index, leader.agreement_limit(hint_index, hint_term)[0])
        assert common <= limit, "the common part was skipped"
        prev = min(limit, prev - 1)
    assert prev >= common or leaders[:prev] == members[:prev]
    assert leader.term_at(prev) == member.term_at(prev)


@given(TERMS.filter(bool), st.integers(0, 8), st.integers(1, 90), st.integers(1, 9))
@settings(max_examples=150, deadline=None)
def test_a_batch_is_the_longest_that_fits_and_at_least_one_entry(
    terms: list[int], base: int, bytes_max: int, first: int
) -> None:
    log = Log(0, 0, entries_of(terms))
    log.commit_to(log.last_index)
    log.take_committed(log.last_index)
    log.compact(min(base, len(terms)))
    first = max(log.first_index, min(first, log.last_index))
    if first > log.last_index:
        return
    for _ in range(2):  # the second answer is the remembered one
        batch = log.batch(first, bytes_max)
        assert batch == log.entries(first, first + len(batch) - 1)
        assert len(batch) == max(1, min(bytes_max // 17, log.last_index - first + 1))


def test_a_remembered_batch_does_not_outlive_its_entries() -> None:
    log = Log(0, 0, entries_of([1, 1]))
    assert [e.term for e in log.batch(1, 1000)] == [1, 1]
    log.truncate(1)
    log.extend(entries_of([2], 2))
    assert [e.term for e in log.batch(1, 1000)] == [1, 2]


@pytest.mark.parametrize("wrong", [entries_of([2], 4), entries_of([2, 1], 3), entries_of([1], 3)])
def test_a_log_refuses_gaps_and_falling_terms(wrong: tuple[Entry, ...]) -> None:
    log = Log(0, 0, entries_of([1, 2]))
    with pytest.raises(AssertionError):
        log.extend(wrong)


# -- writes

WRITE_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 3)),
        st.tuples(st.just("truncate"), st.integers(0, 3)),
        st.tuples(st.just("complete"), st.integers(1, 3)),
    ),
    max_size=25,
)


@given(WRITE_STEPS)
@settings(max_examples=200, deadline=None)
def test_durable_is_exactly_what_completed_writes_hold_of_the_present_log(
    steps: list[tuple[str, int]],
) -> None:
    """The twin keeps whole logs: what is in memory, and what each write leaves on the disk."""
    writes, issued, done = Writes(HardState(), 0), 0, 0
    log: list[int] = []
    disk: list[int] = []
    pending: list[list[int]] = []
    stamp = 0
    for name, count in steps:
        if name == "append":
            for _ in range(count):
                stamp += 1
                log.append(stamp)
            writes.issue(None, len(log))
            pending.append(list(log))
            issued += 1
        elif name == "truncate":
            del log[max(0, len(log) - count) :]
            writes.truncate(len(log))
        else:
            newest = min(issued, done + count)
            if newest > done:
                assert writes.complete(newest)
                disk, pending, done = pending[newest - done - 1], pending[newest - done :], newest
        common = 0
        while common < min(len(log), len(disk)) and log[common] == disk[common]:
            common += 1
        assert writes.durable_index == common
        assert writes.is_idle == (not pending)
        writes.validate(len(log))


# -- the configuration

MEMBERS = st.sets(st.integers(1, 8), min_size=1, max_size=7).map(lambda ids: tuple(sorted(ids)))


@given(st.lists(st.tuples(st.integers(1, 5), MEMBERS), max_size=8), st.integers(0, 30), st.integers(0, 30))
@settings(max_examples=150, deadline=None)
def test_the_history_of_configurations_follows_the_log(
    changes: list[tuple[int, tuple[int, ...]]], cut: int, base: int
) -> None:
    history, twin, index = ConfigurationHistory(0, Configuration((1,))), {0: Configuration((1,))}, 0
    for step, voters in changes:
        index += step
        twin[index] = Configuration(voters)
        history.append(index, twin[index])
    cut = min(cut, index)
    changed = any(at > cut for at in twin)
    assert history.truncate(cut) == changed
    twin = {at: value for at, value in twin.items() if at <= cut}
    base = min(base, cut)
    history.compact(base)
    for place in range(base, cut + 1):
        assert history.at(place) == twin[max(at for at in twin if at <= place)]
    assert history.current == twin[max(twin)]
    history.validate(cut)


@given(MEMBERS, MEMBERS)
@settings(max_examples=100, deadline=None)
def test_every_step_of_a_change_is_a_valid_configuration(old: tuple[int, ...], new: tuple[int, ...]) -> None:
    step = first_step(Configuration(old), Configuration(new))
    assert not step.problem()
    assert step.is_joint == (len({*old} ^ {*new}) > 1)


def test_a_full_group_can_grow_by_the_one_that_replaces_another() -> None:
    seven = tuple(range(1, 8))
    assert VOTERS_MAX == 8
    assert not Configuration((*seven, 8)).problem()
    assert not Configuration((*seven[1:], 8, 9), seven).problem()
    assert Configuration((*seven, 8, 9)).problem()


# -- progress

PROGRESS_STEPS = st.lists(
    st.tuples(st.sampled_from(("send", "ack", "reject", "free", "lost", "snapshot")), st.integers(0, 20)),
    max_size=40,
)


@given(PROGRESS_STEPS, st.integers(1, 4))
@settings(max_examples=200, deadline=None)
def test_progress_keeps_its_window_and_never_takes_back_what_a_member_holds(
    steps: list[tuple[str, int]], window: int
) -> None:
    last = 20
    progress, match = Progress(0, last + 1, window), 0
    for name, number in steps:
        if name == "send" and not progress.is_paused:
            end = min(last, progress.next - 1 + number)
            progress.sent(end, end >= progress.next)
        elif name == "ack":
            progress.acknowledged(number)
            match = max(match, number)
            if progress.mode is Mode.PROBE and number >= progress.next - 1:
                progress.to_replicate()
        elif name == "reject" and number > match:
            progress.rejected(number, max(match, number - 3))
        elif name == "free":
            progress.free_one()
        elif name == "lost":
            progress.to_probe()
        elif name == "snapshot" and number > match:
            progress.to_snapshot(Snapshot(number, 1, Configuration((1,)), b"", 5))
        assert progress.match == match
        progress.validate(last)


# -- messages

NUMBERS = st.integers(0, 2**40)
ENTRIES = st.lists(
    st.builds(Entry, NUMBERS, NUMBERS, st.sampled_from(EntryKind), st.binary(max_size=20)), max_size=4
).map(tuple)
SNAPSHOTS = st.builds(
    Snapshot, NUMBERS, NUMBERS, st.builds(Configuration, MEMBERS), st.binary(max_size=9), NUMBERS
)
MESSAGES = st.one_of(
    st.builds(Append, NUMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS, ENTRIES, NUMBERS, st.booleans()),
    st.builds(AppendReply, NUMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS, st.booleans(), NUMBERS, NUMBERS),
    st.builds(InstallSnapshot, NUMBERS, NUMBERS, NUMBERS, NUMBERS, SNAPSHOTS, NUMBERS, st.binary(max_size=9)),
    st.builds(InstallReply, NUMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS),
)


@given(MESSAGES)
@settings(max_examples=100, deadline=None)
def test_a_message_survives_the_wire(message: Message) -> None:
    assert decode_message(encode_message(message)) == message


# -- the whole machine


class Pair:
    """A leader of one voter and a learner that needs its snapshot; disks are instant, the network is not."""

    def __init__(self, size: int, chunk_bytes_max: int) -> None:
        self.content = bytes((7 * place + 3) % 251 for place in range(size))
        self.settings = RaftSettings(chunk_bytes_max=chunk_bytes_max, chunk_ticks=2, snapshot_ticks=1000)
        self.rafts = {1: self.raft(1), 2: self.raft(2)}
        self.network: list[Message] = []
        self.stored = b""
        self.installed: bytes | None = None
        self.handed: list[int] = []
        for event in (Campaign(), Propose((b"a", b"b"))):
            self.step(1, event)
        self.step(1, Compact(3, b"s", size_bytes=size))
        self.step(1, ProposeConfiguration(Configuration((1,), (), (2,))))

    def raft(self, identity: int) -> Raft:
        voters = (1,) if identity == 1 else ()
        return Raft(1, identity, voters, self.settings, lambda bound: 0, Stored())

    def step(self, identity: int, event: Event) -> None:
        events = [event]
        while events:
            ready = self.rafts[identity].step(events.pop(0))
            self.network += ready.messages + ready.messages_after_persist
            events += self.answers(identity, ready)

    def answers(self, identity: int, ready: Ready) -> list[Event]:
        answers: list[Event] = []
        for wanted in ready.chunks_wanted:
            data = self.content[wanted.offset : wanted.offset + wanted.bytes_max]
            answers.append(SnapshotChunk(wanted.member, wanted.snapshot, wanted.offset, data))
        if ready.snapshot_offered is not None:
            answers.append(ChunkStored(ready.snapshot_offered, len(self.stored)))
        if ready.chunk_received is not None:
            chunk = ready.chunk_received
            assert chunk.offset == len(self.stored)
            self.stored += chunk.data
            answers.append(ChunkStored(chunk.snapshot, len(self.stored)))
        if ready.snapshot is not None:
            assert self.installed is None
            self.installed = self.stored
        if identity == 2:
            self.handed += [entry.index for entry in ready.committed]
        if ready.persisted is not None:
            answers.append(Persisted(ready.persisted.sequence))
        return answers


@pytest.mark.slow
@given(
    st.integers(0, 40),
    st.integers(1, 9),
    st.lists(
        st.tuples(st.sampled_from(("pass", "pass", "lose", "double", "tick")), st.integers(0, 9)), max_size=60
    ),
)
@settings(max_examples=150, deadline=None)
def test_a_snapshot_arrives_whole_over_a_network_that_loses_doubles_and_reorders(
    size: int, chunk_bytes_max: int, schedule: list[tuple[str, int]]
) -> None:
    pair = Pair(size, chunk_bytes_max)
    for action, place in schedule:
        if action == "tick" or not pair.network:
            pair.step(1, Tick())
            continue
        message = pair.network.pop(place % len(pair.network))
        if action == "double":
            pair.network.append(message)
        if action != "lose":
            pair.step(message.receiver, Received(message))
    for _ in range(10 + 4 * size):
        pair.step(1, Tick())
        while pair.network:
            message = pair.network.pop(0)
            pair.step(message.receiver, Received(message))
    assert pair.installed == pair.content
    assert pair.handed == [4], "what follows the snapshot is handed out once"
    assert pair.rafts[1].status().members[2].is_caught_up
    for raft in pair.rafts.values():
        raft.validate()


def test_a_newcomer_is_caught_up_only_when_it_holds_what_was_committed_a_heartbeat_ago() -> None:
    pair = Pair(5, 5)
    seen = [pair.rafts[1].status().members[2].is_caught_up]
    while not pair.rafts[1].status().members[2].is_caught_up:
        pair.step(1, Tick())
        while pair.network:
            message = pair.network.pop(0)
            pair.step(message.receiver, Received(message))
            seen.append(pair.rafts[1].status().members[2].is_caught_up)
    assert seen[0] is False and seen.count(True) >= 1
    assert pair.rafts[1].status().members[2].match >= 4


def test_a_commit_index_counts_only_as_far_as_the_message_shows_the_logs_to_be_equal() -> None:
    """Entries behind the shared part may be leftovers of an older term, whatever the leader has committed."""
    stored = Stored(HardState(1), None, entries_of([1, 1, 1, 1]))
    raft = Raft(1, 2, (1, 2, 3), RaftSettings(), lambda bound: 0, stored)
    raft.step(Received(Append(1, 1, 2, 2, 1, 1, entries_of([1], 2), 4)))
    assert raft.commit_index == 2
    raft.step(Received(Append(1, 1, 2, 2, 2, 1, entries_of([2, 2], 3), 4)))
    assert raft.commit_index == 4 and raft.term_at(4) == 2


def test_late_answers_of_a_driver_are_ignored() -> None:
    pair = Pair(5, 5)
    other = Snapshot(2, 1, Configuration((1,)), b"other", 9)
    leaders: tuple[Event, ...] = (
        SnapshotChunk(2, other, 0, b"x"),
        SnapshotChunk(9, other, 0, b"x"),
        SnapshotFailed(2, other),
    )
    receivers: tuple[Event, ...] = (ChunkStored(other, 9), SnapshotPresent(other))
    assert not any(pair.rafts[1].step(event) for event in leaders)
    assert not any(pair.rafts[2].step(event) for event in receivers)


@pytest.mark.parametrize(
    ("applied", "committed", "again"), [(0, 0, []), (0, 2, [1, 2]), (1, 3, [2, 3]), (2, 2, [])]
)
def test_a_restart_hands_out_what_was_committed_and_not_applied_and_nothing_else(
    applied: int, committed: int, again: list[int]
) -> None:
    entries = (entry(1, 1), entry(2, 1), entry(3, 1))
    stored = Stored(HardState(1, None), None, entries, applied, committed)
    raft = Raft(1, 1, (1, 2, 3), RaftSettings(), lambda bound: 0, stored)
    assert [one.index for one in raft.step(Tick()).committed] == again


def test_an_offer_of_what_the_log_holds_already_commits_it_and_needs_no_transfer() -> None:
    stored = Stored(HardState(1, None), None, (entry(1, 1), entry(2, 1), entry(3, 1)))
    raft = Raft(1, 1, (1, 2), RaftSettings(), lambda bound: 0, stored)
    offer = InstallSnapshot(1, 2, 1, 1, Snapshot(2, 1, Configuration((1, 2)), b"state", 5))
    ready = raft.step(Received(offer))
    assert ready.snapshot_offered is None and [one.index for one in ready.committed] == [1, 2]
    assert [reply.index for reply in ready.messages if isinstance(reply, AppendReply)] == [2]


def follower(*terms: int, snapshot: Snapshot | None = None, first: int = 1) -> Raft:
    """Member 1 of three in term 1, with entries of these terms."""
    stored = Stored(HardState(1, None), snapshot, entries_of(list(terms), first))
    return Raft(1, 1, (1, 2, 3), RaftSettings(), lambda bound: 0, stored)


def test_entries_of_a_log_that_a_snapshot_replaced_are_not_taken_up_again() -> None:
    snapshot = Snapshot(2, 1, Configuration((1, 2, 3)), b"state", 5)
    assert follower(1, 1, 1, snapshot=snapshot).last_index == 3
    with_others = Snapshot(2, 2, Configuration((1, 2, 3)), b"state", 5)
    stored = Stored(HardState(2, None), with_others, entries_of([1, 1, 1]))
    raft = Raft(1, 1, (1, 2, 3), RaftSettings(), lambda bound: 0, stored)
    assert (raft.last_index, raft.term_at(2)) == (2, 2), "the entry at its index is of another term"
    assert follower(1, snapshot=snapshot).last_index == 2, "they end before it"


def test_a_write_that_was_counted_as_durable_is_counted_once() -> None:
    raft = follower(1)
    ready = raft.step(Received(Append(1, 2, 1, 1, 1, 1, (entry(2, 1),), 0)))
    assert ready.persisted is not None
    raft.step(ready.persisted)
    assert raft.durable_index == 2
    again = raft.step(ready.persisted)
    assert raft.durable_index == 2 and not again


def test_only_the_leader_that_is_followed_gives_way() -> None:
    raft = follower(1)
    raft.step(Received(Append(1, 2, 1, 1, 1, 1, (), 0)))
    assert raft.leader == 2
    raft.step(Received(TimeoutNow(1, 3, 1, 1)))
    assert (raft.role, raft.term) == (Role.FOLLOWER, 1)
    raft.step(Received(TimeoutNow(1, 2, 1, 1)))
    assert (raft.role, raft.term) == (Role.CANDIDATE, 2)


def test_a_snapshot_that_the_log_reached_while_it_arrived_does_not_replace_it() -> None:
    raft = follower(1)
    snapshot = Snapshot(3, 1, Configuration((1, 2, 3)), b"state", 5)
    assert raft.step(Received(InstallSnapshot(1, 2, 1, 1, snapshot))).snapshot_offered == snapshot
    ready = raft.step(Received(Append(1, 2, 1, 1, 1, 1, entries_of([1, 1, 1], 2), 0)))
    assert ready.persisted is not None
    raft.step(ready.persisted)
    ready = raft.step(ChunkStored(snapshot, 5))
    assert ready.snapshot is None and raft.commit_index == 3 and raft.last_index == 4
    assert [one.index for one in ready.committed] == [1, 2, 3]
    assert [reply.index for reply in ready.messages if isinstance(reply, AppendReply)] == [3]


def test_a_receiver_that_asks_for_what_there_is_not_is_not_answered() -> None:
    pair = Pair(5, 5)
    while not (found := [one for one in pair.network if isinstance(one, InstallReply)]):
        pair.step(1, Tick())
        for message in [one for one in pair.network if not isinstance(one, InstallReply)]:
            pair.network.remove(message)
            pair.step(message.receiver, Received(message))
    (reply,) = found
    for offset in (-1, 6):
        assert not pair.rafts[1].step(Received(msgspec.structs.replace(reply, offset=offset))).chunks_wanted
    assert pair.rafts[1].step(Received(reply)).chunks_wanted
    assert not pair.rafts[1].step(Received(msgspec.structs.replace(reply, offset=5))).chunks_wanted, (
        "it has all"
    )
