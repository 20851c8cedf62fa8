"""Small requests of one verb that leave for one peer in one turn of the loop: they share a frame.

Invariant: a request that waits here leaves at the end of the turn at the latest, or its connection is gone,
or the loop has stood still meanwhile until nobody waits for an answer any more. What is sent alone in that
turn may leave before it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, TypeVar

import msgspec

from lockstep.internode.frames import REQUEST, SHARED, encode_request
from lockstep.internode.handshake import HasEpoch
from lockstep.runtime.ports import Clock
from lockstep.values.codec import decoder, encode

Q = TypeVar("Q")

#: Longer requests do not share: their own bytes cost more than a frame.
SHARED_REQUEST_BYTES_MAX: Final = 4096
#: Requests whose senders give them up so far apart do not share: of a frame is said when the last of them is
#: given up, and a write that is asked again may be older than those that begin.
SHARED_SPREAD_MS: Final = 50
#: What one frame holds: a receiver judges all of it in one step, half a millisecond of work.
SHARED_REQUESTS_MAX: Final = 64


class SharedRequests(msgspec.Struct, Generic[Q], frozen=True, array_like=True, gc=False):
    """`streams` pair replies with the requests, one each."""

    streams: list[int]
    requests: list[Q]


#: Only the streams of a frame.
SHARED_STREAMS: Final = decoder(tuple[list[int], msgspec.Raw])


class SharedOut:
    """What waits for one peer. `post` takes the frame of the request of a stream."""

    __slots__ = ("_clock", "_from_s", "_newest", "_post", "_until_s", "_waiting")

    def __init__(self, newest: HasEpoch, clock: Clock, post: Callable[[int, bytes], None]) -> None:
        self._newest = newest
        self._clock = clock
        #: The earliest and the latest deadline of all that waits.
        self._from_s = self._until_s = 0.0
        self._post = post
        #: Verb -> streams and bodies.
        self._waiting: dict[int, tuple[list[int], list[bytes]]] = {}

    def add(self, verb: int, stream: int, body: bytes, deadline_s: float) -> bool:
        """Whether it is the first one that waits."""
        if not self._waiting:
            self._from_s = self._until_s = deadline_s
        elif not self._from_s <= deadline_s <= self._until_s:
            self._spread(deadline_s)
        waiting = self._waiting.get(verb)
        if waiting is None:
            is_first = not self._waiting
            self._waiting[verb] = ([stream], [body])
            return is_first
        waiting[0].append(stream)
        waiting[1].append(body)
        if len(waiting[0]) >= SHARED_REQUESTS_MAX:
            self.post()
        return False

    def _spread(self, deadline_s: float) -> None:
        """A request joins that is given up before all that wait, or after them."""
        from_s, until_s = min(self._from_s, deadline_s), max(self._until_s, deadline_s)
        if until_s - from_s > SHARED_SPREAD_MS / 1000:
            self.post()
            from_s = until_s = deadline_s
        self._from_s, self._until_s = from_s, until_s

    def post(self) -> None:
        """Hand on everything that waits, unless all of it is too late."""
        waiting, self._waiting = self._waiting, {}
        now_s, until_s = self._clock.monotonic_s(), self._until_s
        if until_s <= now_s:
            return  # Their senders hear of it from the sweep, as if no answer had come.
        for verb, (streams, bodies) in waiting.items():
            stream, body, flags = streams[0], bodies[0], REQUEST
            if len(streams) > 1:
                stream, flags = 0, REQUEST | SHARED
                body = encode((streams, [msgspec.Raw(body) for body in bodies]))
            frame = encode_request(verb, stream, self._newest.epoch, body, now_s, until_s, flags)
            self._post(streams[0], frame)

    def forget(self) -> None:
        """The connection is gone."""
        self._waiting = {}

    def validate(self) -> None:
        assert 0 <= self._until_s - self._from_s <= SHARED_SPREAD_MS / 1000, "those that wait end together"
        for streams, bodies in self._waiting.values():
            assert 0 < len(streams) == len(bodies) < SHARED_REQUESTS_MAX, "each body has its stream"
