"""What a plan may know of the moment it is made in.

Invariant: the only source of time, ids and randomness in this room; the caller fills it once a request,
so that a re-plan with the same Context gives the same mutation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from lockstep.cql.functions.user_calls import UserCalls
from lockstep.values.rows import Cell


class Context(msgspec.Struct, frozen=True):
    """`now_us`, `now_s`: this coordinator's wall time (a client's now_in_seconds replaces `now_s`).

    `stamp_us`: rises with every request of this coordinator, whatever its wall clock does.
    `timestamp_us`: the client's timestamp, else `stamp_us`; USING TIMESTAMP overrides it.
    `new_mutation_id`: the 14 bytes of the mutation planned. `uuid_source`: 16 random bytes a call.
    `calls`: what is known of calls of user functions; None: none may be made.
    `is_decided`: `timestamp_us` is the time of a ballot, which is above that of every earlier decision.
    """

    now_us: int
    now_s: int
    stamp_us: int
    timestamp_us: int
    new_mutation_id: bytes
    uuid_source: Callable[[], bytes]
    calls: UserCalls | None = None
    is_decided: bool = False

    @property
    def deleted_at_s(self) -> int:
        """When a deletion of this request was made: never before one that this coordinator took earlier, as a
        repair that asked it meanwhile counts only those as arrived."""
        return max(self.now_s, self.stamp_us // 1_000_000)

    def calling(self, calls: UserCalls) -> Context:
        """The context for working the request out once more, with the randomness of the first time."""
        return replace(self, calls=calls, uuid_source=calls.again(self.uuid_source))

    def decided_at(self, time_us: int) -> Context:
        """The context of a request that a ballot of this time decides.

        What says when something was written, and in which order, is the ballot's. What says what time it is
        stays this coordinator's: ballots stand still while a clock that ran ahead is waited for, and nothing
        would expire meanwhile. User functions were called before, so with them `now()` keeps its value.
        """
        stamp_us = time_us if self.calls is None else self.stamp_us
        return replace(self, stamp_us=stamp_us, timestamp_us=time_us, is_decided=True)


#: (table id, partition key, clustering, column id) of a list in a row; the static row's clustering is empty.
ListPlace = tuple[int, bytes, bytes, int]
#: Cells of lists in the order of their elements, as they were before a request.
Lists = Mapping[ListPlace, Sequence[Cell]]


class ListIds:
    """Ids of list elements in the order they are added: 16 bytes that sort by time, then by order.

    Bytes: 2^63 plus (appended) or minus (prepended) microseconds, the mutation id's node and low sequence,
    and a count within the request, downwards for what is prepended. The time is that of the ballot that
    decides the request, so that of two decisions the later one's append goes behind. Else it is the
    coordinator's stamp, not the write timestamp, so that an append goes behind elements that are there
    whatever timestamps clients choose.
    `known`: lists that were read for the request.
    """

    __slots__ = ("_append", "_before", "_behind", "_prepend", "_tail", "known")

    def __init__(self, context: Context, known: Lists | None = None) -> None:
        self.known: Lists = known if known is not None else {}
        half, at_us = 1 << 63, context.timestamp_us if context.is_decided else context.stamp_us
        self._append = (half + at_us).to_bytes(8, "big")
        self._prepend = (half - at_us).to_bytes(8, "big")
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
