"""What a plan may know of the moment it is made in.

Invariant: the only source of time, ids and randomness in this room; the caller fills it once a request,
so that a re-plan with the same Context gives the same mutation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from lockstep.values.rows import Cell

if TYPE_CHECKING:
    from lockstep.cql.user_calls import UserCalls


class Context(msgspec.Struct, frozen=True):
    """`now_us`, `now_s`: this coordinator's wall time (a client's now_in_seconds replaces `now_s`).

    `timestamp_us`: the client's timestamp, else `now_us`; USING TIMESTAMP overrides it.
    `new_mutation_id`: the 14 bytes of the mutation planned. `uuid_source`: 16 random bytes a call.
    `calls`: what is known of calls of user functions; None: none may be made.
    """

    now_us: int
    now_s: int
    timestamp_us: int
    new_mutation_id: bytes
    uuid_source: Callable[[], bytes]
    calls: UserCalls | None = None


#: (table id, partition key, clustering, column id) of a list in a row; the static row's clustering is empty.
ListPlace = tuple[int, bytes, bytes, int]
#: Cells of lists in the order of their elements, as they were before a request.
Lists = Mapping[ListPlace, Sequence[Cell]]


class ListIds:
    """Ids of list elements in the order they are added: 16 bytes that sort by time, then by order.

    Bytes: 2^63 plus (appended) or minus (prepended) the coordinator's microseconds, the mutation id's
    node and low sequence, and a count within the request, downwards for what is prepended. The wall time is
    used, not the write timestamp, so that an append goes behind elements that are there whatever timestamps
    clients choose.
    `known`: lists that were read for the request.
    """

    __slots__ = ("_append", "_before", "_behind", "_prepend", "_tail", "known")

    def __init__(self, context: Context, known: Lists | None = None) -> None:
        self.known: Lists = known if known is not None else {}
        half = 1 << 63
        self._append = (half + context.now_us).to_bytes(8, "big")
        self._prepend = (half - context.now_us).to_bytes(8, "big")
        self._tail = context.new_mutation_id[:2] + context.new_mutation_id[-3:]
        self._behind = 0
        self._before = 1 << 24

    def take(self, count: int, *, prepend: bool = False) -> list[bytes]:
        """Of elements that are added together; what is prepended later in a request goes to the front."""
        if prepend:
            self._before -= count
            front, first = self._prepend, self._before
        else:
            front, first = self._append, self._behind
            self._behind += count
        return [front + self._tail + at.to_bytes(3, "big") for at in range(first, first + count)]
