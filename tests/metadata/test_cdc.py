"""Generations of change data capture: streams, ids, and which timestamps may be written."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.metadata import cdc
from lockstep.metadata.cdc import Generation, current, first_generation, packed, unpacked, write_allowed

S = 1_000_000
NOW_US = 1_000 * S
TOKENS = array("q", [-(1 << 62), -1, 0, 5, (1 << 63) - 1])


def generation(at_s: int, published: bool = True) -> Generation:
    made = first_generation("c", TOKENS, at_s * 1000, 1)
    return Generation(made.timestamp_ms, made.id, at_s, 1, made.tokens, 1 if published else 0)


#: One that is superseded, the present one, one that begins in 3 s, and one that nobody may use yet.
KNOWN = (generation(100), generation(500), generation(1003), generation(1004, published=False))


@pytest.mark.parametrize(
    ("known", "timestamp_us", "problem"),
    [
        (KNOWN, NOW_US, ""),
        (KNOWN, NOW_US + 5 * S, ""),
        (KNOWN, NOW_US + 5 * S + 1, "ahead of this server's time"),
        (KNOWN, NOW_US - 5 * S, ""),
        (KNOWN, 500 * S, ""),
        (KNOWN, 500 * S - 1, "has been superseded"),
        (KNOWN, 100 * S, "has been superseded"),
        (KNOWN, 100 * S - 1, "no stream generation is known"),
        (KNOWN, 10_000 * S, "ahead of this server's time"),
        ((), NOW_US, "no stream generation is known"),
        ((generation(1004),), NOW_US, "no stream generation is known"),
        ((generation(1004),), NOW_US + 4 * S, ""),
        # The generation changed a moment ago: clocks may differ, so the one before still takes writes.
        ((generation(100), generation(998)), NOW_US - 4 * S, ""),
        ((generation(100), generation(998)), NOW_US - 5 * S, "has been superseded"),
        ((generation(100), generation(990, published=False)), NOW_US - 60 * S, ""),
    ],
)
def test_which_timestamps_may_be_written(
    known: tuple[Generation, ...], timestamp_us: int, problem: str
) -> None:
    found = write_allowed(known, timestamp_us, NOW_US)
    assert problem in found if problem else found == ""


@given(st.lists(st.integers(0, 50), unique=True, min_size=1), st.integers(0, 60 * S))
def test_the_present_generation_is_the_newest_that_has_begun(starts_s: list[int], at_us: int) -> None:
    known = tuple(generation(start) for start in sorted(starts_s))
    begun = [one for one in known if one.timestamp_ms * 1000 <= at_us]
    assert current(known, at_us) is (begun[-1] if begun else None)


@given(st.lists(st.integers(-(1 << 63) + 1, (1 << 63) - 1), unique=True, min_size=1), st.data())
def test_there_is_one_stream_for_each_range_and_it_names_the_end_of_its_range(
    tokens: list[int], data: st.DataObject
) -> None:
    ends = array("q", sorted(tokens))
    made = first_generation("c", ends, 1, 1)
    assert unpacked(packed(ends)) == ends == made.range_ends() and made.count == len(ends)
    streams = dict(made.streams())
    assert list(streams) == list(ends) and len(set(streams.values())) == len(ends)
    for end, stream in streams.items():
        assert len(stream) == cdc.STREAM_BYTES and int.from_bytes(stream[:8], "big", signed=True) == end
    low, high = sorted(data.draw(st.tuples(st.sampled_from(tokens), st.integers(-100, 100))))
    assert dict(made.streams(low, high)) == {e: s for e, s in streams.items() if low <= e <= high}


def test_ids_are_time_uuids_that_differ_by_cluster_operation_and_entry() -> None:
    # 2026-01-01 00:00:00 UTC, worked out by hand.
    at_ms = 1_767_225_600_000
    text = cdc.generation_id("c", 7, 9, at_ms)
    low, middle, high, sequence, node = text.split("-")
    assert high[0] == "1" and sequence[0] in "89ab" and int(node[:2], 16) & 1
    ticks = int(high[1:] + middle + low, 16)
    assert ticks // 10_000 - 12_219_292_800_000 == at_ms
    others = [cdc.generation_id(*parts, at_ms) for parts in (("d", 7, 9), ("c", 8, 9), ("c", 7, 10))]
    assert len({text, *others}) == 4 and text == cdc.generation_id("c", 7, 9, at_ms)
    one, other = (first_generation(cluster, TOKENS, at_ms, 1) for cluster in "cd")
    assert {s for _, s in one.streams()}.isdisjoint(s for _, s in other.streams())


def test_ids_and_streams_stay_what_they_were() -> None:
    """Readers of the log keep them: what another version computes must be the same bytes."""
    assert cdc.generation_id("c", 7, 9, 1_767_225_600_000) == "d0c3c000-e6a4-11f0-a9a0-49d25c8bacce"
    made = Generation(1, "4d9d2000-e6a5-11f0-8000-000000000001", 0, 1, packed(TOKENS), 1)
    found = [(end, stream.hex()) for end, stream in made.streams()]
    assert found == [
        (-4611686018427387904, "c000000000000000d70117be68000001"),
        (-1, "ffffffffffffffffd70117be68000011"),
        (0, "0000000000000000d70117be68000021"),
        (5, "0000000000000005d70117be68000031"),
        (9223372036854775807, "7fffffffffffffffd70117be68000041"),
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        (generation(2), generation(1)),
        (generation(1), generation(1)),
        (generation(1, published=False), generation(2)),
    ],
)
def test_generations_out_of_order_are_no_value(wrong: tuple[Generation, ...]) -> None:
    cdc.validate((generation(1), generation(2), generation(3, published=False)))
    with pytest.raises(AssertionError):
        cdc.validate(wrong)
