"""Which tokens of which tables a stretch of keys may have held, and what a store keeps of what it lacks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lockstep.storage.rows import keys
from lockstep.storage.rows.keys import with_ballots
from lockstep.storage.store import Family
from lockstep.storage.store_position import (
    FIRST_KEY,
    LAST_KEY,
    Lack,
    Lacking,
    lacked,
    lacking_record,
    lacks_in,
    tokens_between,
)
from lockstep.values.errors import RangeLacking
from lockstep.values.tokens import FULL_RING, TOKEN_MAX, TOKEN_MIN, Range

TABLE = 7


def key(token: int, table: int = TABLE) -> bytes:
    return keys.partition_prefix(table, token, b"k")


LOWER, UPPER = keys.table_bounds(TABLE)
BETWEEN = {
    "everything": ((FIRST_KEY, LAST_KEY), FULL_RING),
    "the whole table": ((LOWER, UPPER), FULL_RING),
    "inside": ((key(-5), key(9)), Range(-6, 9)),
    "one token": ((key(4), key(4)), Range(3, 4)),
    "from a token on": ((key(-5), LAST_KEY), Range(-6, TOKEN_MAX)),
    "up to a token": ((FIRST_KEY, key(9)), Range(TOKEN_MIN, 9)),
    "from the table before": ((key(1, TABLE - 1), key(9)), Range(TOKEN_MIN, 9)),
    "into the table behind": ((key(-5), key(1, TABLE + 1)), Range(-6, TOKEN_MAX)),
    "keys too short to have a token": ((LOWER + b"\x01", LOWER + b"\x02"), FULL_RING),
    "the table before": ((key(1, TABLE - 1), key(2, TABLE - 1)), None),
    "the table behind": ((key(1, TABLE + 1), key(2, TABLE + 1)), None),
    "up to just before": ((FIRST_KEY, LOWER[:-1]), None),
    "from just behind": ((UPPER, LAST_KEY), None),
    "the lowest token": ((key(TOKEN_MIN + 1), key(TOKEN_MIN + 1)), Range(TOKEN_MIN, TOKEN_MIN + 1)),
}


@pytest.mark.parametrize("name", BETWEEN)
def test_tokens_whose_keys_may_lie_in_a_stretch(name: str) -> None:
    (first_key, last_key), tokens = BETWEEN[name]
    assert tokens_between(first_key, last_key, TABLE) == tokens


def test_what_is_lacking_is_told_of_any_stretch_that_has_some_of_the_tokens() -> None:
    lacks = [Lack(key(-20), key(-10)), Lack(key(5), key(8))]
    assert lacked(lacks, TABLE, Range(-9, 4)) is None
    assert lacked(lacks, TABLE, Range(0, 6)) == Range(4, 6)
    assert lacked(lacks, TABLE, FULL_RING) == Range(-21, -10)
    assert lacked(lacks, TABLE + 1, FULL_RING) is None
    assert lacked([], TABLE, FULL_RING) is None


def test_only_what_may_be_lacking_is_refused() -> None:
    facts: Any = SimpleNamespace(local_fact=lambda _: lacking_record((Lack(key(5), key(8)),))[2])
    lacking = Lacking(facts)
    lacking.require(TABLE, Range(-9, 4))
    lacking.require(TABLE + 1, FULL_RING)
    with pytest.raises(RangeLacking, match=rf"lost what it stored of \(4, 6\] of table {TABLE}"):
        lacking.require(TABLE, Range(0, 6))
    Lacking(SimpleNamespace(local_fact=lambda _: None)).require(TABLE, FULL_RING)  # type: ignore[arg-type]


def test_ballots_of_conditional_writes_count_to_their_table() -> None:
    ballots = [table for table in with_ballots((TABLE,)) if table != TABLE]
    assert ballots
    for table in ballots:
        assert lacked([Lack(key(5, table), key(8, table))], TABLE, Range(0, 6)) == Range(4, 6)


def test_only_a_store_that_was_made_anew_lacks_everything() -> None:
    assert Lack(FIRST_KEY, LAST_KEY).is_everything
    assert not Lack(FIRST_KEY, key(1)).is_everything
    assert not Lack(key(1), LAST_KEY).is_everything


def test_what_a_store_lacks_is_read_back_from_its_record() -> None:
    lacks = (Lack(key(1), key(2), "7.sst", 5, sole=True), Lack(FIRST_KEY, LAST_KEY, given_up=True))
    kind, name, record = lacking_record(lacks)
    assert (kind, name[:1]) == ("put", Family.LOCAL.value)
    assert lacks_in(record) == lacks
    assert lacks_in(None) == lacks_in(lacking_record(())[2]) == ()
