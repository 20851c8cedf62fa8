"""Estimates of what a range holds: exact while it is small, near the truth when it is not."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import rocksdict

from lockstep.storage.engine import estimated_bytes
from lockstep.storage.rocks.rocks_runs import TableFile
from lockstep.storage.rows import keys
from lockstep.storage.store import Pair
from lockstep.values.tokens import FULL_RING, TOKEN_MAX, TOKEN_MIN, Range


class Pairs:
    """What a store scans."""

    def __init__(self, tokens: list[int], value: bytes = b"v" * 60) -> None:
        self.pairs: list[Pair] = sorted(
            (keys.partition_prefix(3, token, b"key") + keys.KIND_ROW + b"\x00" * 24, value)
            for token in tokens
        )

    def scan(self, lower: bytes, upper: bytes) -> list[Pair]:
        return [pair for pair in self.pairs if lower <= pair[0] < upper]


def file_bytes(directory: Path, pairs: list[Pair]) -> int:
    """How large the library makes a file of them."""
    file = TableFile(rocksdict, str(directory / "pairs.sst"))
    file.add(pairs)
    file.complete()
    return (directory / "pairs.sst").stat().st_size if pairs else 0


def spread(count: int) -> list[int]:
    width = (TOKEN_MAX - TOKEN_MIN) // (count + 1)
    return [TOKEN_MIN + width * (1 + number) for number in range(count)]


@pytest.mark.parametrize("within", [FULL_RING, Range(0, TOKEN_MAX), Range(-100, 100)])
def test_a_range_that_is_read_whole_is_told_as_its_file_is(tmp_path: Path, within: Range) -> None:
    store = Pairs(spread(50))
    size, seen = estimated_bytes(store, 3, within, 50)  # type: ignore[arg-type]
    assert size == pytest.approx(file_bytes(tmp_path, store.scan(*keys.token_bounds(3, within))), rel=0.1)
    assert seen <= 50


@pytest.mark.parametrize("value", [b"v" * 600, bytes(range(256)) * 8, b"", random.Random(1).randbytes(3000)])
def test_what_compression_saves_is_told_as_well(tmp_path: Path, value: bytes) -> None:
    store = Pairs(spread(300), value)
    size, _ = estimated_bytes(store, 3, FULL_RING, 300)  # type: ignore[arg-type]
    made = file_bytes(tmp_path, store.pairs)
    assert made / 1.3 < size < made * 1.3, (size, made)


@pytest.mark.parametrize("within", [FULL_RING, Range(-(1 << 62), 1 << 61)])
def test_a_larger_one_is_scaled_by_the_tokens_it_was_read_through(within: Range) -> None:
    store = Pairs(spread(5000))
    size, seen = estimated_bytes(store, 3, within, 100)  # type: ignore[arg-type]
    whole, _ = estimated_bytes(store, 3, within, 5000)  # type: ignore[arg-type]
    assert seen == 100 and size == pytest.approx(whole, rel=0.05)


def test_other_tables_and_empty_ranges_hold_nothing() -> None:
    store = Pairs(spread(50))
    assert estimated_bytes(store, 4, FULL_RING, 10) == (0, 0)  # type: ignore[arg-type]
    assert estimated_bytes(Pairs([]), 3, FULL_RING, 10) == (0, 0)  # type: ignore[arg-type]
