"""Paging states: where a page ended and what limits are left, as bytes that any node understands.

Invariant: `decode(encode(state)) == state`; bytes that no node made are refused.
"""

from __future__ import annotations

import zlib

import msgspec

from lockstep.values import codec
from lockstep.values.errors import ProtocolViolation
from lockstep.values.rows import Position
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN


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
