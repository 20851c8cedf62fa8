"""Fragment keys: where a write's pieces live, in the order in which reads want them; and the hidden companion
of each table, where the ballots of its conditional writes lie.

    family 1 | table id 4 | token 8 | partition key, escaped | 00 | kind 1
             | clustering, escaped | 00 00 (rows only) | write time, inverted 8 | write id 14

Invariant: Keys order by (table, token, partition key, kind, clustering, newest write first). Inside an
escaped part 00 is always followed by ff, and a part ends with 00 followed by less, so no part is a prefix of
another and order is that of the raw bytes. Two different writes to one place differ in their last 22 bytes;
the same write delivered again has the same key. A companion has its table's tokens and partition keys and an
id that no table is given, so its fragments are stored, merged, streamed and wiped as those of a table, beside
and never among its rows.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

from lockstep.storage.store import Family
from lockstep.values.errors import CorruptFile
from lockstep.values.ids import MUTATION_ID_BYTES
from lockstep.values.rows import Slice
from lockstep.values.tokens import Range

#: Kinds of fragments of one partition, in the order a read needs them.
KIND_HEADER = b"\x00"
KIND_STATIC = b"\x01"
KIND_ROW = b"\x02"
_KIND_AFTER = b"\x03"

_TABLE = struct.Struct(">cI")
_PLACE = struct.Struct(">cIQ")
_TIME = struct.Struct(">Q")
_BIAS = 1 << 63
_TIMESTAMP_MAX = (1 << 63) - 1
_FAMILY = Family.DATA.value
#: Length of family, table and token; then the escaped partition key begins.
PLACE_BYTES = _PLACE.size
WRITE_BYTES = _TIME.size + MUTATION_ID_BYTES
_ROW_END = b"\x00\x00"
#: What follows the clustering in the key of a row.
ROW_TAIL_BYTES = WRITE_BYTES + len(_ROW_END)


def partition_prefix(table_id: int, token: int, key: bytes) -> bytes:
    """What every key of the partition begins with; the kind follows."""
    return _PLACE.pack(_FAMILY, table_id, token + _BIAS) + key.replace(b"\x00", b"\x00\xff") + b"\x00"


def partition_end(prefix: bytes) -> bytes:
    """Above every key of the partition, at or below the next partition's first."""
    return prefix + _KIND_AFTER


def write_suffix(timestamp_us: int, write_id: bytes) -> bytes:
    """Newest first within one place; `write_id` is a mutation id or a merge's content hash."""
    assert len(write_id) == MUTATION_ID_BYTES, "a write id has a fixed length"
    return _TIME.pack(_TIMESTAMP_MAX - timestamp_us) + write_id


def row_prefix(prefix: bytes, clustering: bytes) -> bytes:
    """What the keys of all fragments of one row begin with; the write suffix follows."""
    return prefix + KIND_ROW + clustering.replace(b"\x00", b"\x00\xff") + _ROW_END


def row_place(prefix: bytes, clustering: bytes) -> bytes:
    """What of a row's keys names its place within the table."""
    return row_prefix(prefix, clustering)[PLACE_BYTES : -len(_ROW_END)]


def head_place(prefix: bytes, kind: bytes) -> bytes:
    """As `row_place`, of what a partition has beside rows."""
    return prefix[PLACE_BYTES:] + kind


def row_key(prefix: bytes, clustering: bytes, timestamp_us: int, write_id: bytes) -> bytes:
    """`row_prefix` and `write_suffix` in one, for it is made for every write."""
    if b"\x00" in clustering:
        clustering = clustering.replace(b"\x00", b"\x00\xff")
    place = prefix + KIND_ROW + clustering + _ROW_END
    assert len(write_id) == MUTATION_ID_BYTES, "a write id has a fixed length"
    return place + _TIME.pack(_TIMESTAMP_MAX - timestamp_us) + write_id


def place_end(place: bytes) -> bytes:
    """Above every fragment of one place (a row prefix, or partition prefix and kind)."""
    return place + b"\xff" * (WRITE_BYTES + 1)


def slice_bounds(prefix: bytes, part: Slice) -> tuple[bytes, bytes]:
    """Store bounds of the rows of a partition in a clustering slice."""
    lower = prefix + KIND_ROW + part.start.replace(b"\x00", b"\x00\xff")
    if not part.end:
        return lower, prefix + _KIND_AFTER
    return lower, prefix + KIND_ROW + part.end.replace(b"\x00", b"\x00\xff")


def table_bounds(table_id: int) -> tuple[bytes, bytes]:
    """Store bounds of everything of one table."""
    return _TABLE.pack(_FAMILY, table_id), _above_table(table_id)


def token_bounds(table_id: int, tokens: Range) -> tuple[bytes, bytes]:
    """Store bounds of the partitions with left < token <= right."""
    lower = _PLACE.pack(_FAMILY, table_id, tokens.left + 1 + _BIAS)
    if tokens.right == _TIMESTAMP_MAX:
        return lower, _above_table(table_id)
    return lower, _PLACE.pack(_FAMILY, table_id, tokens.right + 1 + _BIAS)


def _above_table(table_id: int) -> bytes:
    return _TABLE.pack(_FAMILY, table_id + 1)


def split_partition(store_key: bytes) -> tuple[int, bytes, bytes]:
    """(token, partition key, partition prefix) of any fragment's key; CorruptFile when it is none."""
    at = PLACE_BYTES
    while True:
        at = store_key.find(b"\x00", at)
        if at < 0 or at + 1 >= len(store_key):
            raise CorruptFile(store_key.hex(), max(at, 0), "not the key of a fragment")
        if store_key[at + 1] != 0xFF:
            break
        at += 2
    token = _PLACE.unpack_from(store_key)[2] - _BIAS
    return token, store_key[PLACE_BYTES:at].replace(b"\x00\xff", b"\x00"), store_key[: at + 1]


def stored_id_of(store_key: bytes) -> int:
    """The id, a table's or a companion's, under which a fragment is stored."""
    return int.from_bytes(store_key[1:5], "big")


def token_of(store_key: bytes) -> int:
    """Of any key that has one, whatever follows it."""
    token: int = _PLACE.unpack_from(store_key)[2] - _BIAS
    return token


def clustering_of(store_key: bytes, prefix: bytes) -> bytes:
    """Clustering bytes in the key of a row's fragment of the partition with this prefix."""
    return store_key[len(prefix) + 1 : -ROW_TAIL_BYTES].replace(b"\x00\xff", b"\x00")


def timestamp_of(store_key: bytes) -> int:
    """Write time in microseconds that the key carries."""
    inverted: int = _TIME.unpack_from(store_key, len(store_key) - WRITE_BYTES)[0]
    return _TIMESTAMP_MAX - inverted


#: Table ids come from the metadata log and stay far below.
_COMPANION: Final = 1 << 31


def ballots_of(table_id: int) -> int:
    """The id under which the ballots of a table are stored."""
    assert table_id < _COMPANION, "a companion has no companion"
    return table_id | _COMPANION


def with_ballots(table_ids: Iterable[int]) -> list[int]:
    """The tables with their companions: for what is done to all content of tables."""
    return [found for table_id in table_ids for found in (table_id, ballots_of(table_id))]


def all_stored_ids(table_ids: Iterable[int]) -> list[int]:
    """As `with_ballots`, ascending: companions come behind all tables."""
    ids = sorted(table_ids)
    assert not ids or ids[-1] < _COMPANION, "a companion has no companion"
    return [*ids, *[table_id | _COMPANION for table_id in ids]]


def table_of(stored_id: int) -> int:
    """The table that a stored id belongs to."""
    return stored_id & ~_COMPANION
