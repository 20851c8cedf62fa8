"""Digests of buckets: the same however rows are stored and looked at, others where anything differs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from random import Random

import pytest

pytest.importorskip("numpy")

from lockstep.scans.bucket_digests import BucketDigests
from lockstep.scans.scan_table import ScanTable
from lockstep.storage.rows import keys
from lockstep.storage.rows.fragments import decode_rows, encode_row
from lockstep.storage.rows.reconcile import merge_rows
from lockstep.storage.rows.visible import row_left
from lockstep.storage.store import Pair
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN, Range

from .support import NOW_S, Writer, table_of

WIDTHS = {"int": 4, "bigint": 8}
POOLS = {
    "p0": [number.to_bytes(4, "big") for number in range(600)],
    "c0": [b"", b"a", b"b\x00c", b"dd", *(b"%03d" % number for number in range(400))],
    "s0": [b"here", b""],
    "r0": [bytes(4), b"\xff\xff\xff\xff", b"\0\0\0\7"],
    "r1": [b"", b"text", b"x" * 300],
}


def table() -> ScanTable:
    return table_of(["int"], [("text", False)], ["text"], ["int", "text"])


def buckets(count: int) -> list[Range]:
    bounds = [TOKEN_MIN + (TOKEN_MAX - TOKEN_MIN) * at // count for at in range(count + 1)]
    return [Range(left, right) for left, right in itertools.pairwise(bounds)]


def widths(found: ScanTable) -> dict[int, int]:
    return {column.id: WIDTHS[column.type] for column in found.table.columns if column.type in WIDTHS}


def told(
    pairs: Sequence[Pair],
    *,
    together: bool = True,
    before_s: int = 0,
    dice: Random | None = None,
    count: int = 7,
) -> tuple[list[tuple[bytes, int]], int]:
    """What is told of the pairs, fed in portions of any size; how many rows were merged alone."""
    one = BucketDigests(buckets(count), before_s, widths(table()), together=together)
    at = 0
    while at < len(pairs):
        end = at + (dice.choice([1, 3, 50, 400]) if dice is not None else len(pairs))
        one.feed(pairs[at:end])
        at = end
    return one.finish(), one.merged_rows


def merged(pairs: Sequence[Pair], dice: Random, before_s: int) -> list[Pair]:
    """The same content after some merging: some rows are one fragment, without what may be purged."""
    made: list[Pair] = []
    for place, some in itertools.groupby(pairs, lambda pair: pair[0][: -keys.WRITE_BYTES]):
        group = list(some)
        _, _, prefix = keys.split_partition(group[0][0])
        is_row = place[len(prefix) : len(prefix) + 1] == keys.KIND_ROW
        if not is_row or dice.random() < 0.5:
            made += group
            continue
        row = merge_rows(decode_rows(group, len(prefix) + 1))
        row = None if row is None else row_left(row, before_s)
        if row is not None:
            suffix = keys.write_suffix(keys.timestamp_of(group[0][0]), bytes(14))
            made.append((place + suffix, encode_row(row)))
    return sorted(made)


def contents() -> Iterator[tuple[int, list[Pair]]]:
    for seed in range(40):
        dice = Random(seed)
        writer = Writer(table(), dice, POOLS, gaps=dice.random() < 0.5)
        writer.fill(dice.choice([3, 30]), dice.choice([1, 5, 60]), dice.choice([0.0, 0.0, 0.02, 0.5]))
        yield seed, writer.pairs


@pytest.mark.parametrize("before_s", [0, NOW_S + 1])
def test_digests_are_of_content_however_it_is_stored_and_read(before_s: int) -> None:
    together = alone = 0
    for seed, pairs in contents():
        dice = Random(seed)
        expected, all_rows = told(pairs, together=False, before_s=before_s)
        found, some = told(pairs, before_s=before_s, dice=dice)
        assert found == expected, seed
        assert told(merged(pairs, dice, before_s), before_s=before_s, dice=dice)[0] == expected, seed
        together, alone = together + all_rows - some, alone + some
    assert together > 3000 and alone > 1000


def test_anything_that_differs_is_told_of_its_bucket_alone() -> None:
    for seed, pairs in contents():
        dice = Random(seed)
        expected, _ = told(pairs)
        at = dice.randrange(len(pairs))
        key, value = pairs[at]
        # A byte of a value or of a time; or a fragment is not there.
        for changed in ([(key, _other(value, dice))], []):
            try:
                found, _ = told([*pairs[:at], *changed, *pairs[at + 1 :]])
            except Exception:
                continue
            unlike = [number for number, pair in enumerate(found) if pair != expected[number]]
            token = keys.token_of(key)
            (own,) = [n for n, bucket in enumerate(buckets(7)) if bucket.left < token <= bucket.right]
            assert unlike in ([own], []), (seed, unlike, own)
            if not unlike:
                # What was changed is behind a newer write or a deletion: nothing is different.
                alike = told(pairs, together=False)[0]
                assert told([*pairs[:at], *changed, *pairs[at + 1 :]], together=False)[0] == alike


def _other(value: bytes, dice: Random) -> bytes:
    at = dice.randrange(len(value))
    return value[:at] + bytes([value[at] ^ (1 << dice.randrange(8))]) + value[at + 1 :]


def test_a_changed_value_of_a_plain_row_is_told() -> None:
    """Every byte of the values of rows that are looked at together counts, and so does every key."""
    writer = Writer(table(), Random(1), POOLS, gaps=False)
    writer.fill(10, 30, 0.0)
    newest = {key[: -keys.WRITE_BYTES]: (key, value) for key, value in writer.pairs[::-1]}
    pairs = sorted(pair for pair in newest.values() if b"text" in pair[1])
    assert len(pairs) > 50
    expected, _ = told(pairs, count=1)
    for at in range(0, len(pairs), 7):
        key, value = pairs[at]
        changed = value.replace(b"text", b"tExt")
        assert told([*pairs[:at], (key, changed), *pairs[at + 1 :]], count=1)[0] != expected
        assert told([*pairs[:at], *pairs[at + 1 :]], count=1)[0] != expected


def test_nothing_has_a_digest_too() -> None:
    assert told([]) == told([], together=False)
    assert [rows for _, rows in told([])[0]] == [0] * 7
