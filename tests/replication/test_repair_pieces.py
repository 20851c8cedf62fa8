"""What repairs send in one go is what a replica can take in one batch, however large a partition's key is."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from lockstep.replica.merging import pieces
from lockstep.replica.messages import About, Note
from lockstep.replica.repair_participant import RepairParticipant
from lockstep.storage.rows import keys
from lockstep.storage.rows.difference import repair_mutation
from lockstep.storage.rows.fragments import fragments_of
from lockstep.values.ids import MUTATION_ID_BYTES
from lockstep.values.limits import REPAIR_ROWS_MAX
from lockstep.values.rows import Deletion, Liveness, Partition, Row
from lockstep.values.tokens import Range


@pytest.mark.parametrize("key", [b"k", b"\x00" * 1000, b"k" * 65_535, b"\x00" * 65_535])
def test_a_piece_fits_one_batch(key: bytes) -> None:
    rows = tuple(Row(b"%06d" % at, Liveness(1)) for at in range(3 * REPAIR_ROWS_MAX))
    whole = Partition(5, key, Deletion(1, 1), rows=rows)
    found = pieces(whole)
    assert tuple(row for piece in found for row in piece.rows) == rows
    assert [piece.deletion for piece in found] == [whole.deletion] + [None] * (len(found) - 1)
    for piece in found:
        fragments_of(repair_mutation(7, piece, bytes(MUTATION_ID_BYTES)), keys.partition_prefix(7, 5, key))
    assert len(key) > 1000 or len(found) == 3


def test_the_size_of_many_ranges_is_estimated_in_several_turns() -> None:
    watched: list[Range] = []
    engine = SimpleNamespace(
        unchanged=SimpleNamespace(watch=lambda _session, _table, ranges: watched.extend(ranges)),
        estimated_bytes=lambda _table, range_, _pairs: (range_.right - range_.left, 1),
    )
    participant: Any = SimpleNamespace(_engine=engine)
    ranges = tuple(Range(at, at + 2) for at in range(0, 40, 2))
    noted = asyncio.run(RepairParticipant._extent(participant, Note("s", 1, About.EXTENT, 7, ranges)))
    assert noted.bytes == 40 and tuple(watched) == ranges and noted.changed == ()
