"""The hidden companion of each table: where the ballots of its conditional writes lie.

Invariant: a companion has its table's tokens and partition keys and an id that no table is given, so its
fragments are stored, merged, streamed and wiped as those of a table, beside and never among its rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

#: Table ids come from the metadata log and stay far below.
_COMPANION: Final = 1 << 31


def ballots_of(table_id: int) -> int:
    """The id under which the ballots of a table are stored."""
    assert table_id < _COMPANION, "a companion has no companion"
    return table_id | _COMPANION


def with_ballots(table_ids: Iterable[int]) -> list[int]:
    """The tables with their companions: for what is done to all content of tables."""
    return [found for table_id in table_ids for found in (table_id, ballots_of(table_id))]


def table_of(stored_id: int) -> int:
    """The table that a stored id belongs to."""
    return stored_id & ~_COMPANION
