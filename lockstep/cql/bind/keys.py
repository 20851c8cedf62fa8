"""Partition keys as the bytes that drivers hash.

Invariant: `split_key(routing_key(parts), len(parts)) == parts`; one component stands alone, several are
each 2 length bytes, the value and a zero byte.
"""

from __future__ import annotations

from collections.abc import Sequence

from lockstep.values.errors import InvalidRequest

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
