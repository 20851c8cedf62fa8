"""Compression as the protocol uses it: LZ4 blocks, and snappy before version 5.

Invariant: decompression never allocates more than the stated size, which is checked against a limit
first, and the result has exactly the stated size.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

import lz4.block

from lockstep.cql.wire.primitives import UINT, unpack_uint
from lockstep.values.errors import ProtocolViolation

LZ4: Final = "lz4"
SNAPPY: Final = "snappy"
#: Algorithms offered in SUPPORTED: snappy where its library is installed.
ALGORITHMS: Final = (SNAPPY, LZ4) if find_spec("cramjam") is not None else (LZ4,)
#: Longest prefix of a snappy block: its size in seven bits a byte.
_SNAPPY_SIZE_BYTES_MAX: Final = 5


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


def compress_body(body: bytes, algorithm: str = LZ4) -> bytes:
    """A whole body before version 5: a snappy block, or 4 bytes of uncompressed size and the LZ4 block."""
    if algorithm == SNAPPY:
        # Few clients ask for it: only they pay for the library.
        import cramjam

        return bytes(cramjam.snappy.compress_raw(body))
    return UINT.pack(len(body)) + compress_block(body)


def decompress_body(body: bytes, bytes_max: int, algorithm: str = LZ4) -> bytes:
    """The body behind a compressed one; raises ProtocolViolation above `bytes_max`."""
    if algorithm == SNAPPY:
        size = _snappy_size(body)
    elif len(body) < 4:
        raise ProtocolViolation("Compressed body without its size")
    else:
        size = unpack_uint(body, 0)[0]
    if size > bytes_max:
        raise ProtocolViolation(
            f"Request is too big: length {size} exceeds maximum allowed length {bytes_max}"
        )
    if algorithm == SNAPPY:
        return _decompress_snappy(body, size)
    return decompress_block(body[4:], size) if size else b""


def _snappy_size(block: bytes) -> int:
    size = 0
    for at, byte in enumerate(block[:_SNAPPY_SIZE_BYTES_MAX]):
        size |= (byte & 0x7F) << 7 * at
        if byte < 0x80:
            return size
    raise ProtocolViolation("Compressed body without its size")


def _decompress_snappy(block: bytes, size: int) -> bytes:
    import cramjam

    try:
        data = bytes(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError:
        raise ProtocolViolation("Damaged snappy block") from None
    if len(data) != size:
        raise ProtocolViolation(f"Snappy block holds {len(data)} bytes instead of {size}")
    return data
