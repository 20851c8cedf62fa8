"""LZ4 block compression as the protocol uses it.

Invariant: decompression never allocates more than the stated size, which is checked against a limit
first, and the result has exactly the stated size.
"""

from __future__ import annotations

import lz4.block

from lockstep.cql.wire.primitives import UINT, unpack_uint
from lockstep.values.errors import ProtocolViolation

#: Algorithms offered in SUPPORTED; v5 allows lz4 only.
ALGORITHMS = ("lz4",)


def compress_block(data: bytes) -> bytes:
    """A raw block, as in v5 segments (the header holds the size)."""
    block: bytes = lz4.block.compress(data, store_size=False)
    return block


def decompress_block(block: bytes, size: int) -> bytes:
    """The `size` bytes of a raw block; raises ProtocolViolation when it holds anything else."""
    try:
        data: bytes = lz4.block.decompress(block, uncompressed_size=size)
    except lz4.block.LZ4BlockError:
        raise ProtocolViolation("Damaged LZ4 block") from None
    if len(data) != size:
        raise ProtocolViolation(f"LZ4 block holds {len(data)} bytes instead of {size}")
    return data


def compress_body(body: bytes) -> bytes:
    """A v4 body: 4 bytes of uncompressed size, then the raw block."""
    return UINT.pack(len(body)) + compress_block(body)


def decompress_body(body: bytes, bytes_max: int) -> bytes:
    """The body behind a v4 compressed one; raises ProtocolViolation above `bytes_max`."""
    if len(body) < 4:
        raise ProtocolViolation("Compressed body without its size")
    size = unpack_uint(body, 0)[0]
    if size > bytes_max:
        raise ProtocolViolation(
            f"Request is too big: length {size} exceeds maximum allowed length {bytes_max}"
        )
    return decompress_block(body[4:], size) if size else b""
