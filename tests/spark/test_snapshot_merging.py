"""What several replicas store, taken together; where reading goes on; whom a snapshot names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from random import Random
from typing import Any

import msgspec
import pytest

pytest.importorskip("pyarrow")

import pyarrow as pa

from lockstep.scans.content_reading import STORED_SCHEMA
from lockstep.scans.messages import SessionNode, SessionOpened, SessionRange
from lockstep.spark.snapshot_reading import left_of
from lockstep.spark.snapshots import readable
from lockstep.spark.stored_union import Source, union
from lockstep.storage.rows import keys
from lockstep.storage.store import Pair
from lockstep.values.errors import ConfigurationError, Unavailable
from lockstep.values.ids import Consistency
from tests.scans.support import table_of

PREFIX = keys.partition_prefix(7, 5, b"k\x00y")


def _batches(pairs: Sequence[Pair], dice: Random) -> Iterator[pa.RecordBatch]:
    """In pieces of any size, some of them empty."""
    at = 0
    while at < len(pairs) or dice.random() < 0.2:
        end = at + dice.choice([0, 1, 3, 50])
        columns = [pa.array([pair[slot] for pair in pairs[at:end]], pa.binary()) for slot in (0, 1)]
        yield pa.RecordBatch.from_arrays(columns, schema=STORED_SCHEMA)
        at = end


def test_the_union_is_in_order_and_whole() -> None:
    alike = 0
    for seed in range(300):
        dice = Random(seed)
        stored = [(number.to_bytes(3, "big"), dice.randbytes(2)) for number in range(dice.randrange(200))]
        missing = dice.choice([0.0, 0.0, 0.1, 0.9])
        lists = [[pair for pair in stored if dice.random() >= missing] for _ in range(dice.choice([2, 3]))]
        cuts = dice.randrange(1 << 30)
        sources = [Source(number, _batches(pairs, Random(cuts))) for number, pairs in enumerate(lists)]
        seen: list[Pair] = []
        for pairs, last in union(sources):
            seen += pairs
            assert pairs[-1][0] <= last
        assert seen == sorted({pair for pairs in lists for pair in pairs}), seed
        alike += not missing
    assert alike > 100


def test_fragments_of_one_place_that_differ_are_both_given() -> None:
    one, other = [(b"a", b"1"), (b"c", b"1")], [(b"a", b"2"), (b"b", b"1")]
    sources = [Source(number, _batches(pairs, Random(number))) for number, pairs in enumerate((one, other))]
    seen = [pair for pairs, _ in union(sources) for pair in pairs]
    assert seen == [(b"a", b"1"), (b"a", b"2"), (b"b", b"1"), (b"c", b"1")]


def _row_key(clustering: bytes) -> bytes:
    return keys.row_key(PREFIX, clustering, 5, bytes(14))


def test_reading_goes_on_with_the_head_of_its_partition() -> None:
    lower, upper = keys.token_bounds(7, _range(0, 9))
    inside = _row_key(b"c")
    assert left_of(((lower, upper),), inside) == ((PREFIX, PREFIX + keys.KIND_ROW), (inside, upper))
    head = PREFIX + keys.KIND_STATIC + bytes(22)
    assert left_of(((lower, upper),), head) == ((PREFIX, head), (head, upper))


def test_reading_goes_on_behind_a_partition_without_it() -> None:
    lower, upper = keys.token_bounds(7, _range(0, 9))
    end = keys.partition_end(PREFIX)
    assert left_of(((lower, upper),), end) == ((end, upper),)
    assert left_of(((lower, upper), (upper, upper + b"\xff")), upper) == ((upper, upper + b"\xff"),)
    assert left_of(((lower, upper),), b"") == ((lower, upper),)
    assert left_of(((lower, upper),), upper) == ()


def _range(left: int, right: int) -> Any:
    from lockstep.values.tokens import Range

    return Range(left, right)


PART = SessionRange(0, 9, (1, 2, 3), 4)
NODES = tuple(
    SessionNode(number, f"10.0.0.{number}", 9042, "a" if number < 3 else "b") for number in (1, 2, 3)
)


def _opened(node: int, part: SessionRange = PART) -> SessionOpened:
    return SessionOpened("s", node, 5, 1, 0, table_of(["int"], [], [], []), (part,), NODES)


@pytest.mark.parametrize(
    ("level", "wanted", "nodes"),
    [
        (Consistency.ONE, 1, (1, 2, 3)),
        (Consistency.LOCAL_ONE, 1, (1, 2)),
        (Consistency.QUORUM, 2, (1, 2, 3)),
        (Consistency.LOCAL_QUORUM, 2, (1, 2)),
        (Consistency.ALL, 3, (1, 2, 3)),
        (Consistency.THREE, 3, (1, 2, 3)),
    ],
)
def test_a_level_wants_so_many_of_a_ranges_replicas(
    level: Consistency, wanted: int, nodes: tuple[int, ...]
) -> None:
    found = readable(PART, _opened(1), {number: _opened(number) for number in (1, 2, 3)}, "a", level)
    assert (found.wanted, found.nodes) == (wanted, nodes)


@pytest.mark.parametrize(
    ("full", "witnesses", "level", "wanted"),
    [
        ((1, 2), (3,), Consistency.QUORUM, 2),
        ((1, 2), (3,), Consistency.ONE, 1),
        ((1, 2), (3,), Consistency.ALL, 2),
        ((1, 2, 3), (4, 5), Consistency.QUORUM, 3),
        ((1, 2, 3, 4), (5,), Consistency.QUORUM, 3),
        ((1, 2), (3, 4), Consistency.QUORUM, 2),
        ((1, 2, 3), (4,), Consistency.QUORUM, 2),
    ],
)
def test_of_those_that_have_rows_so_many_are_read_that_each_quorum_has_one(
    full: tuple[int, ...], witnesses: tuple[int, ...], level: Consistency, wanted: int
) -> None:
    nodes = tuple(SessionNode(number, "", 9042, "a") for number in (*full, *witnesses))
    part = SessionRange(0, 9, full, 4, witnesses)
    opened = msgspec.structs.replace(_opened(1, part), nodes=nodes)
    found = readable(part, opened, dict.fromkeys(full, opened), "a", level)
    assert (found.wanted, found.nodes) == (wanted, full)
    if level is Consistency.QUORUM:
        everyone = (*full, *witnesses)
        writes = list(combinations(everyone, len(everyone) // 2 + 1))
        for read in combinations(full, wanted):
            assert all({*read} & {*write} for write in writes)
        assert any(not {*read} & {*write} for read in combinations(full, wanted - 1) for write in writes), (
            "one less would not do"
        )
        with pytest.raises(Unavailable) as refused:
            readable(part, opened, dict.fromkeys(full[: wanted - 1], opened), "a", level)
        assert "only full replicas count" in refused.value.message


def test_a_level_for_which_there_are_too_few_full_replicas_is_refused() -> None:
    part = SessionRange(0, 9, (1, 2), 4, (3,))
    with pytest.raises(ConfigurationError, match="witnesses have no rows"):
        readable(part, _opened(1, part), {}, "a", Consistency.THREE)
    with pytest.raises(ConfigurationError, match="there are 0"):
        readable(part, _opened(1, part), {}, "b", Consistency.LOCAL_ONE)


def test_nodes_that_know_other_replicas_do_not_count() -> None:
    """One of them has not heard of a move, or has heard of one more."""
    others = SessionRange(0, 9, (1, 2, 4), 6)
    found = {1: _opened(1), 2: _opened(2, others), 3: _opened(3)}
    assert readable(PART, _opened(1), found, "a", Consistency.QUORUM).nodes == (1, 3)
    with pytest.raises(Unavailable):
        readable(PART, _opened(1), found, "a", Consistency.LOCAL_QUORUM)
    with pytest.raises(ConfigurationError, match="EACH_QUORUM"):
        readable(PART, _opened(1), found, "a", Consistency.EACH_QUORUM)
