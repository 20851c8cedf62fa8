"""The trace of a run: every callback, send, fault and observed fact, folded into one digest.

Invariant: the digest depends on the seed and the code alone, so two runs of a seed, in whatever
processes, give the same 128 bits. Events hold only integers, floats, text, bytes and tuples of them.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

#: Events hashed together: large enough that hashing does not show, small enough to stay in cache.
BLOCK_EVENTS = 4096

Event = tuple[Any, ...]


class Trace:
    """Append events to `block`; call `flush` when it holds BLOCK_EVENTS."""

    def __init__(self, *, keep: bool = False) -> None:
        self.block: list[Event] = []
        self.events: list[Event] | None = [] if keep else None
        self.count = 0
        self._hash = hashlib.blake2b(digest_size=16)
        self._encode = msgspec.msgpack.Encoder().encode

    def flush(self) -> None:
        """Hash the block and empty it. The list object stays the same: the scheduler holds it."""
        block = self.block
        # Each event encodes to a self-delimiting value, so where blocks are cut does not show in the digest.
        self._hash.update(b"".join(map(self._encode, block)))
        self.count += len(block)
        if self.events is not None:
            self.events.extend(block)
        block.clear()

    def digest(self) -> str:
        """Hexadecimal BLAKE2b-128 of everything so far."""
        self.flush()
        return self._hash.hexdigest()

    def render(self, last: int = 200) -> str:
        """The last events as text, one a line; empty unless the trace keeps its events."""
        self.flush()
        return "\n".join(_line(event) for event in (self.events or [])[-last:])


def _line(event: Event) -> str:
    at_ns, *rest = event
    return f"{at_ns / 1e9:12.6f}  " + "  ".join(str(part) for part in rest)
