"""What repairs send in one go is what a replica can take in one batch, however large a partition's key is."""

from __future__ import annotations

import pytest

from lockstep.replica.merging import pieces
from lockstep.storage.rows import keys
from lockstep.storage.rows.difference import repair_mutation
from lockstep.storage.rows.fragments import fragments_of
from lockstep.values.ids import MUTATION_ID_BYTES
from lockstep.values.limits import REPAIR_ROWS_MAX
from lockstep.values.rows import Deletion, Liveness, Partition, Row


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
