"""What was repaired since when, token by token, and the repairs that found it."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.metadata import repairs
from lockstep.metadata.repairs import (
    NO_REPAIRS,
    Repair,
    Repaired,
    RepairPart,
    Repairs,
    RepairState,
    TableRepairs,
    joined_ranges,
    oldest,
    recorded,
)
from lockstep.values.ids import NodeId
from lockstep.values.limits import REPAIRS_ENDED_KEPT_MAX
from lockstep.values.tokens import Range

RING = 20


def repair(number: int, *parts: RepairPart, purpose: str = "") -> Repair:
    return Repair(number, NodeId(1), parts, (), True, 100, purpose=purpose)


def part(keyspace: str, tables: tuple[int, ...], *ranges: tuple[int, int]) -> RepairPart:
    return RepairPart(keyspace, 1, tables, tuple(Range(*ends) for ends in ranges))


def facts(one: Repaired) -> tuple[int, int, int]:
    return (one.at_s, one.before_s, one.epoch)


# -- what is recorded


class Twin:
    """Token -> facts; nothing where none was repaired."""

    def __init__(self) -> None:
        self.by_token: dict[int, tuple[int, int, int]] = {}

    def record(self, new: Repaired) -> None:
        for token in range(new.range.left + 1, new.range.right + 1):
            self.by_token[token] = facts(new)

    def oldest(self, wanted: Range) -> tuple[int, ...] | None:
        found = [self.by_token.get(token) for token in range(wanted.left + 1, wanted.right + 1)]
        if None in found:
            return None
        return tuple(min(values) for values in zip(*[one for one in found if one], strict=True))


ranges = (
    st.tuples(st.integers(0, RING), st.integers(0, RING))
    .filter(lambda ends: ends[0] != ends[1])
    .map(lambda ends: Range(min(ends), max(ends)))
)
repaired = st.builds(Repaired, ranges, st.integers(1, 3), st.integers(0, 2), st.integers(1, 3))


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.lists(repaired, max_size=8), st.lists(ranges, min_size=1, max_size=4))
def test_what_is_recorded_of_each_token_is_what_was_found_there_last(
    found: list[Repaired], asked: list[Range]
) -> None:
    known: tuple[Repaired, ...] = ()
    twin = Twin()
    for one in found:
        known = recorded(known, one)
        twin.record(one)
    listed = {token: facts(one) for one in known for token in range(one.range.left + 1, one.range.right + 1)}
    assert listed == twin.by_token
    assert sum(one.range.right - one.range.left for one in known) == len(listed), "disjoint"
    for before, after in itertools.pairwise(known):
        assert before.range.right <= after.range.left, "sorted"
        assert before.range.right < after.range.left or facts(before) != facts(after), "joined"
    for wanted in asked:
        answer = oldest(known, wanted)
        assert (facts(answer) if answer is not None else None) == twin.oldest(wanted)
        assert answer is None or answer.range == wanted


def test_too_many_pieces_are_joined_at_the_older_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repairs, "REPAIRED_RANGES_KEPT_MAX", 3)
    known: tuple[Repaired, ...] = ()
    for left, at_s in ((0, 5), (10, 7), (30, 6)):
        known = recorded(known, Repaired(Range(left, left + 10), at_s, at_s - 1, at_s + 1))
    assert [one.at_s for one in known] == [5, 7, 6], "as many as are allowed"
    known = recorded(known, Repaired(Range(20, 25), 9, 8, 10))
    assert known == (Repaired(Range(0, 25), 5, 4, 6), Repaired(Range(30, 40), 6, 5, 7)), "a hole stays one"


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(st.lists(ranges, max_size=8))
def test_joined_ranges_hold_the_same_tokens_and_do_not_touch(given_ranges: list[Range]) -> None:
    joined = joined_ranges(given_ranges)
    assert {t for one in joined for t in range(one.left, one.right)} == {
        t for one in given_ranges for t in range(one.left, one.right)
    }
    assert all(one.right < other.left for one, other in itertools.pairwise(joined))


def test_records_of_tables_grow_and_go_with_the_tables() -> None:
    old, new = Repaired(Range(0, 10), 1, 1, 1), Repaired(Range(10, 20), 2, 2, 2)
    first = NO_REPAIRS.with_repaired({7: (old,), 5: (old, new)}, (5, 7))
    assert first.tables == (TableRepairs(5, (old, new)), TableRepairs(7, (old,)))
    second = first.with_repaired({7: (new,)}, (7, 9))
    assert second.tables == (TableRepairs(7, (old, new)),), "5 is known no more, nothing is known of 9"
    assert second.by_table == {7: (old, new)}
    assert second.next_id == first.next_id and not second.running


# -- the repairs themselves


def test_a_repair_runs_until_it_ends_and_is_found_for_a_while() -> None:
    made = NO_REPAIRS
    for number in (1, 2, 3):
        made = made.begun(repair(number, part("ks", (1,), (0, 10)), purpose="index" if number == 3 else ""))
    assert (made.next_id, list(made.by_session)) == (4, ["repair-1", "repair-2", "index-3"])
    done = msgspec.structs.replace(repair(2), state=RepairState.DONE)
    after = made.without(done)
    assert [one.id for one in after.running] == [1, 3] and after.ended == (done,)
    assert after.find(2) is done and after.find(3) is made.running[2] and after.find(4) is None
    assert list(after.by_session) == ["repair-1", "index-3"]
    with pytest.raises(AssertionError, match="never given twice"):
        after.begun(repair(2))


def test_as_many_ended_repairs_are_kept_as_the_limit_says() -> None:
    made = Repairs()
    for number in range(1, REPAIRS_ENDED_KEPT_MAX + 3):
        made = made.begun(repair(number)).without(repair(number))
    assert [one.id for one in made.ended] == list(range(3, REPAIRS_ENDED_KEPT_MAX + 3))


def test_a_repair_is_called_by_its_purpose_and_its_keyspaces() -> None:
    parts = part("a", (1,), (0, 10)), part("b", (2,), (0, 10))
    assert repair(4, *parts).title() == "repair 4 (of a, b)"
    assert repair(4, *parts, purpose="view build").title() == "view build 4 (of a, b)"


@pytest.mark.parametrize(
    ("wanted", "shared"),
    [
        (part("ks", (1, 9), (5, 25)), (5, 10)),
        (part("ks", (2,), (15, 22)), (20, 22)),
        (part("ks", (3,), (0, 100)), (50, 60)),
        (part("ks", (1, 2), (10, 20)), None),
        (part("ks", (4,), (0, 100)), None),
        (part("ks", (1,), (50, 60)), None),
    ],
)
def test_two_repairs_overlap_where_they_share_tokens_of_a_table(
    wanted: RepairPart, shared: tuple[int, int] | None
) -> None:
    running = repair(1, part("ks", (1, 2), (0, 10), (20, 30)), part("other", (3,), (50, 60)))
    assert running.overlap(wanted) == (Range(*shared) if shared is not None else None)
