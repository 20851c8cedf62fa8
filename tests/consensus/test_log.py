"""The log and the queue of reads in memory, against plain lists."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.consensus.configuration import ENTRY_OVERHEAD_BYTES
from lockstep.consensus.effects import ReadState
from lockstep.consensus.log import Log
from lockstep.consensus.messages import Entry, EntryKind
from lockstep.consensus.state import ReadQueue


def entry(index: int, term: int, size: int = 1) -> Entry:
    return Entry(index, term, EntryKind.NORMAL, bytes(size))


class Twin:
    """(term, size) of every entry since the base."""

    def __init__(self, base: int, base_term: int) -> None:
        self.base, self.base_term = base, base_term
        self.items: list[Entry] = []
        self.commit = self.handed = base
        self.unsaved = base + 1

    @property
    def last(self) -> int:
        return self.base + len(self.items)

    def term_at(self, index: int) -> int | None:
        if index == self.base:
            return self.base_term
        return self.items[index - self.base - 1].term if self.base < index <= self.last else None

    def batch(self, first: int, bytes_max: int) -> tuple[Entry, ...]:
        rest = self.items[first - self.base - 1 :]
        count = next((n for n in range(1, len(rest)) if _weight(rest[: n + 1]) > bytes_max), len(rest))
        return tuple(rest[:count])

    def agreement(self, index: int, term: int) -> tuple[int, int]:
        for at in range(min(index, self.last), self.base, -1):
            own = self.term_at(at)
            assert own is not None
            if own <= term:
                return at, own
        return self.base, self.base_term


def _weight(entries: list[Entry]) -> int:
    return sum(len(one.data) + ENTRY_OVERHEAD_BYTES for one in entries)


STEPS = ("extend", "extend", "truncate", "commit", "hand", "compact", "save")


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_log_equals_a_list(data: st.DataObject) -> None:
    base = data.draw(st.integers(0, 3))
    log, twin = Log(base, base, ()), Twin(base, base)
    for _ in range(data.draw(st.integers(1, 12))):
        what = data.draw(st.sampled_from(STEPS))
        if what == "extend":
            sizes = data.draw(st.lists(st.integers(0, 40), min_size=1, max_size=4))
            term = (twin.term_at(twin.last) or 0) + data.draw(st.integers(0, 2))
            more = [entry(twin.last + at, term, size) for at, size in enumerate(sizes, 1)]
            log.extend(more)
            twin.items += more
        elif what == "truncate":
            at = data.draw(st.integers(twin.commit, twin.last))
            log.truncate(at)
            del twin.items[at - twin.base :]
            twin.unsaved = min(twin.unsaved, at + 1)
        elif what == "commit":
            at = data.draw(st.integers(0, twin.last))
            assert log.commit_to(at) is (at > twin.commit)
            twin.commit = max(twin.commit, at)
        elif what == "hand":
            durable = data.draw(st.integers(0, twin.unsaved - 1))
            upto = max(twin.handed, min(durable, twin.commit))
            expected = tuple(twin.items[twin.handed - twin.base : upto - twin.base])
            assert log.take_committed(durable) == expected
            twin.handed = upto
        elif what == "compact":
            at = data.draw(st.integers(0, twin.handed))
            log.compact(at)
            if at > twin.base:
                term = twin.term_at(at) or 0
                del twin.items[: at - twin.base]
                twin.base, twin.base_term = at, term
        else:
            assert log.take_unsaved() == tuple(twin.items[twin.unsaved - twin.base - 1 :])
            twin.unsaved = twin.last + 1
            assert log.take_unsaved() == ()
        _check(log, twin, data)


def _check(log: Log, twin: Twin, data: st.DataObject) -> None:
    log.validate()
    found = (log.base_index, log.base_term, log.last_index, log.commit_index, log.handed_index, log.unsaved)
    assert found == (twin.base, twin.base_term, twin.last, twin.commit, twin.handed, twin.unsaved)
    assert log.first_index == twin.base + 1 and log.last_term == twin.term_at(twin.last)
    assert [log.term_at(at) for at in range(twin.last + 3)] == [
        twin.term_at(at) for at in range(twin.last + 3)
    ]
    assert log.entries(twin.base + 1, twin.last) == tuple(twin.items)
    first, last = sorted(data.draw(st.tuples(*[st.integers(twin.base + 1, twin.last + 1)] * 2)))
    if last <= twin.last:
        assert log.entries(first, last) == tuple(twin.items[first - twin.base - 1 : last - twin.base])
        assert log.entry(first) is twin.items[first - twin.base - 1]
    bytes_max = data.draw(st.sampled_from((1, ENTRY_OVERHEAD_BYTES * 2 + 10, 3 * ENTRY_OVERHEAD_BYTES + 60)))
    for _ in range(2):
        assert log.batch(first, bytes_max) == twin.batch(first, bytes_max)
    index, term = data.draw(st.tuples(st.integers(twin.base, twin.last + 2), st.integers(0, 6)))
    assert log.agreement_limit(index, term) == twin.agreement(index, term)
    assert log.matches(index, term) is (twin.term_at(index) == term)
    own = (twin.term_at(twin.last) or 0, twin.last)
    assert log.is_current(index, term) is ((term, index) >= own)
    offered = [entry(at, term) for at in range(twin.base + 1, index + 1)]
    fresh = next((n for n, one in enumerate(offered) if twin.term_at(one.index) != term), len(offered))
    assert log.new_part(offered) == fresh


def test_what_was_cut_once_is_not_sent_again_after_the_log_changed() -> None:
    log = Log(0, 0, [entry(1, 1), entry(2, 1)])
    assert log.batch(1, 1_000) == (entry(1, 1), entry(2, 1))
    log.truncate(1)
    log.extend([entry(2, 2)])
    assert log.batch(1, 1_000) == (entry(1, 1), entry(2, 2)), "as long as before, and another"


def test_a_snapshot_replaces_the_log() -> None:
    log = Log(0, 0, [entry(1, 1), entry(2, 1)])
    log.batch(1, 1_000)
    log.reset(5, 3)
    log.validate()
    assert (log.first_index, log.last_index, log.last_term, log.term_at(5)) == (6, 5, 3, 3)
    assert log.take_unsaved() == () and log.take_committed(9) == () and log.entries(6, 5) == ()
    log.extend([entry(6, 3)])
    assert log.take_unsaved() == (entry(6, 3),)
    with pytest.raises(AssertionError, match="take the commit index back"):
        log.reset(5, 3)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (lambda log: log.extend([entry(5, 2)]), "must follow"),
        (lambda log: log.extend([entry(4, 1)]), "terms fall"),
        (lambda log: log.extend([entry(4, 3), entry(5, 2)]), "terms fall"),
        (lambda log: log.truncate(1), "below commit 2"),
        (lambda log: log.commit_to(4), "entries were lost"),
        (lambda log: log.compact(2), "only applied entries"),
        (lambda log: log.entry(0), "no entry 0"),
        (lambda log: log.entry(4), "no entry 4"),
        (lambda log: log.entries(0, 2), "no entries 0..2"),
        (lambda log: log.entries(2, 4), "no entries 2..4"),
    ],
)
def test_what_would_break_a_log_stops_the_member(wrong: object, why: str) -> None:
    """Entries 1 to 3, of which two are committed and one is applied."""
    log = Log(0, 0, [entry(1, 1), entry(2, 1), entry(3, 2)])
    log.commit_to(2)
    log.take_committed(1)
    with pytest.raises(AssertionError, match=why):
        wrong(log)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("last_index", 4), ("last_index", 2), ("handed_index", 3), ("commit_index", 4), ("handed_index", -1),
        ("unsaved", 5), ("unsaved", 0), ("base_term", 2),
        ("_entries", [entry(1, 1), entry(2, 1), entry(4, 2)]),
        ("_entries", [entry(1, 2), entry(2, 1), entry(3, 2)]),
    ],
)  # fmt: skip
def test_a_log_that_contradicts_itself_is_noticed(name: str, value: object) -> None:
    log = Log(0, 0, [entry(1, 1), entry(2, 1), entry(3, 2)])
    log.commit_to(2)
    log.validate()
    setattr(log, name, value)
    with pytest.raises(AssertionError):
        log.validate()


def test_reads_wait_for_the_round_that_begins_after_they_were_asked() -> None:
    queue = ReadQueue(3)
    assert queue.is_empty and not queue.has_waiting and not queue.is_round_open and not queue.is_full
    queue.add(1, 10)
    assert queue.has_waiting and not queue.is_empty and not queue.is_round_open
    assert queue.begin_round() == 1 and queue.is_round_open and not queue.has_waiting
    queue.add(2, 11)
    assert not queue.is_full and queue.confirm(0) == []
    queue.add(3, 12)
    assert queue.is_full, "those in a round count"
    assert queue.begin_round() == 2
    assert queue.confirm(1) == [ReadState(1, 10)] and not queue.is_empty
    queue.add(4, 13)
    assert queue.is_full and queue.clear() == [2, 3, 4]
    assert queue.is_empty and queue.round == 0 and queue.confirm(0) == []
    queue.add(5, 14)
    assert queue.begin_round() == 1 and queue.confirm(1) == [ReadState(5, 14)]


def test_rounds_are_confirmed_in_order() -> None:
    queue = ReadQueue(9)
    for number in (1, 2, 3):
        queue.add(number, number)
        queue.begin_round()
    assert [read.context for read in queue.confirm(2)] == [1, 2]
    assert [read.context for read in queue.confirm(3)] == [3] and queue.is_empty
