"""What a node remembers of how far its secondary indexes are built.

    family 44 | 00 | 01 | table id 4 | index id 4       ->  the token it is built up to, b"" when built whole
    family 44 | 00 | 02 | table id 4 | left 8 | right 8 ->  b"": entries of this range may be missing

Invariant: an index without a mark is not built; a range is marked, durably, before rows without entries
become visible in it.
"""

from __future__ import annotations

import struct

from lockstep.storage.store import Delete, Family, Put, Store
from lockstep.values.tokens import TOKEN_MIN, Range

_INDEX = struct.Struct(">cccII")
_RANGE = struct.Struct(">cccIqq")
_TABLE = struct.Struct(">cccI")
_TOKEN = struct.Struct(">q")
_MARK, _OF_INDEX, _OF_RANGE = b"\x00", b"\x01", b"\x02"


def _index_key(table_id: int, index_id: int) -> bytes:
    return _INDEX.pack(Family.INDEX.value, _MARK, _OF_INDEX, table_id, index_id)


def _range_key(table_id: int, tokens: Range) -> bytes:
    return _RANGE.pack(Family.INDEX.value, _MARK, _OF_RANGE, table_id, tokens.left, tokens.right)


def built_up_to(store: Store, table_id: int, index_id: int) -> int | None:
    """The token up to which an index is built; None when it is built whole."""
    found = store.get(_index_key(table_id, index_id))
    if found is None:
        return TOKEN_MIN
    token: int | None = _TOKEN.unpack(found)[0] if found else None
    return token


def noted(table_id: int, index_id: int, token: int | None) -> Put:
    """Note that an index is built up to a token, or whole."""
    return "put", _index_key(table_id, index_id), b"" if token is None else _TOKEN.pack(token)


def missing(table_id: int, tokens: Range) -> Put:
    """Note that entries of a range may be missing."""
    return "put", _range_key(table_id, tokens), b""


def not_missing(table_id: int, tokens: Range) -> Delete:
    return "delete", _range_key(table_id, tokens)


def missing_ranges(store: Store, table_id: int) -> list[Range]:
    """The ranges noted by `missing`."""
    lower, upper = (
        _TABLE.pack(Family.INDEX.value, _MARK, _OF_RANGE, one) for one in (table_id, table_id + 1)
    )
    return [Range(*_RANGE.unpack(key)[4:]) for key, _ in store.scan(lower, upper)]


def forgotten(table_id: int, index_id: int) -> Delete:
    """Forget how far an index was built: its id is never given again."""
    return "delete", _index_key(table_id, index_id)
