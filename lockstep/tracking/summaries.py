"""What a replica tells of logs that are over: a digest, for their ids would add up with each restart.

A log is over once its node has begun a later one and every replica holds all of it; one of what mutations of
another range add to logs of changes, once its node has started again. Invariant: equal sets have equal
digests.
"""

from __future__ import annotations

import hashlib
from typing import Final

from lockstep.tracking.held import LOG_BITS, NOTHING, Held, is_beside

_DIGEST_BYTES: Final = 16


def parted(held: Held, reconciled: Held) -> tuple[Held, Held]:
    """What is held of logs that go on, or are not all reconciled, and of those that are over."""
    newest: dict[int, int] = {}
    for node, start, _ in held.logs:
        if not is_beside(start):
            newest[node] = max(start, newest.get(node, 0))
    settled = frozenset(reconciled.logs)
    over = tuple(log for log in held.logs if _is_later(newest.get(log[0], 0), log[1]) and log in settled)
    if not over:
        return held, NOTHING
    ended = frozenset(over)
    listed = Held(tuple(log for log in held.logs if log not in ended))
    assert len(listed.logs) + len(over) == len(held.logs), "a log is over or goes on"
    return listed, Held(over)


def _is_later(newest: int, number: int) -> bool:
    """Whether a node has begun a later log; it goes on with others beside one of its start."""
    return number >> LOG_BITS < newest >> LOG_BITS if is_beside(number) else number < newest


def digest(held: Held) -> bytes:
    """Of the logs in their order, each with its runs: counts and gaps as varints."""
    values: list[int] = [len(held.logs)]
    for node, start, runs in held.logs:
        values += (node, start, len(runs) // 2)
        end = 0
        for first, last in zip(runs[::2], runs[1::2], strict=True):
            values += (first - end, last - first)
            end = last + 1
    return hashlib.blake2b(b"".join(map(_varint, values)), digest_size=_DIGEST_BYTES).digest()


def _varint(value: int) -> bytes:
    assert value >= 0, value
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)
