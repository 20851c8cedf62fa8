"""Partition keys as the bytes that drivers hash, and paging states, where a page ended and what limits are
left, as bytes that any node understands.

Invariant: `split_key(routing_key(parts), len(parts)) == parts`; one component stands alone, several are each
2 length bytes, the value and a zero byte. `decode(encode(state)) == state`; bytes that no node made are
refused.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import msgspec

from lockstep.values import codec
from lockstep.values.errors import InvalidRequest, ProtocolViolation
from lockstep.values.rows import Position
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN

#: A component's length is written in 16 bits.
KEY_BYTES_MAX = 65_535


def routing_key(parts: Sequence[bytes]) -> bytes:
    """The serialised key that a request gives; InvalidRequest for an empty or too long one."""
    key = derived_key(parts)
    if not key:
        raise InvalidRequest("Key may not be empty")
    return key


def derived_key(parts: Sequence[bytes]) -> bytes:
    """As `routing_key`, for a key made of stored values: as in Cassandra, a view has rows whose key is one
    empty value, which scans alone find."""
    if len(parts) == 1:
        key = parts[0]
    else:
        if (size := sum(map(len, parts))) > KEY_BYTES_MAX:
            raise _too_long(size)
        key = b"".join([len(part).to_bytes(2, "big") + part + b"\x00" for part in parts])
    if len(key) > KEY_BYTES_MAX:
        raise _too_long(len(key))
    return key


def check_clustering(encoded: bytes, parts: Sequence[bytes]) -> None:
    """InvalidRequest when the values of a row's clustering columns are too long together."""
    # Most are told by their encoding, which is never half as long as the values.
    if len(encoded) > KEY_BYTES_MAX // 2 and (size := sum(map(len, parts))) > KEY_BYTES_MAX:
        raise _too_long(size)


def split_key(key: bytes, count: int) -> tuple[bytes, ...]:
    """The components of a serialised key of a table with `count` of them."""
    if count == 1:
        return (key,)
    parts = []
    at = 0
    for _ in range(count):
        end = at + 2 + int.from_bytes(key[at : at + 2], "big")
        parts.append(key[at + 2 : end])
        at = end + 1
    assert at == len(key), "a partition key with bytes behind its last component"
    return tuple(parts)


def _too_long(size: int) -> InvalidRequest:
    return InvalidRequest(f"Key length of {size} is longer than maximum of {KEY_BYTES_MAX}")


class PagePosition(msgspec.Struct, frozen=True, array_like=True):
    """`table`: the table's UUID, which stays when the table is emptied: its rows end then, and no client is
    told of an error. `remaining`: rows LIMIT still allows (-1: no limit). `partition_rows`: rows already
    given of the position's partition, for PER PARTITION LIMIT.
    """

    table: str
    position: Position
    remaining: int
    partition_rows: int


_DECODER = codec.decoder(PagePosition)
_CHECK_BYTES = 4
#: Rows of LIMIT and of a partition; more are never counted.
_COUNT_MAX = 1 << 62


def encode(state: PagePosition) -> bytes:
    body = codec.encode(state)
    return zlib.crc32(body).to_bytes(_CHECK_BYTES, "big") + body


def decode(data: bytes, table: str) -> PagePosition:
    """ProtocolViolation when `data` is no paging state of this table."""
    body = data[_CHECK_BYTES:]
    if zlib.crc32(body).to_bytes(_CHECK_BYTES, "big") == data[:_CHECK_BYTES]:
        try:
            state = _DECODER.decode(body)
        except msgspec.MsgspecError:
            raise _invalid() from None
        if state.table == table and _is_place(state):
            return state
    raise _invalid()


def _is_place(state: PagePosition) -> bool:
    """Whether its numbers are such as pages have: a client may have made them."""
    token, counts = state.position.token, (state.remaining + 1, state.partition_rows)
    return TOKEN_MIN <= token <= TOKEN_MAX and all(0 <= count <= _COUNT_MAX for count in counts)


def _invalid() -> ProtocolViolation:
    return ProtocolViolation("Invalid value for the paging state")
