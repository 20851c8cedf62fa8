"""Causal tokens: the mutations that one client has written or was shown, told to whoever coordinates next.

A token names them by table, by range as it was cut when they were seen, and by id. What every replica holds
is left out of it: that is shown by any of them. Invariant: `decode(encode(spans)) == spans`, and what
`decode` takes from a client is well formed and within `CAUSAL_TOKEN_BYTES_MAX`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final

import msgspec

from lockstep.tracking.held import NOTHING, Held
from lockstep.tracking.limits import CAUSAL_SPANS_MAX, CAUSAL_TOKEN_BYTES_MAX
from lockstep.values import codec
from lockstep.values.errors import InvalidRequest

#: Key in the custom payloads of requests, whose value is a token or empty, and of their answers.
TOKEN_KEY: Final = "lockstep-causal"

#: A table, since which epoch it was tracked, the token behind which one of its ranges begins, and the range's
#: last one.
Place = tuple[int, int, int, int]
#: The token behind which some begin, and the last one.
Bounds = tuple[int, int]


class Span(msgspec.Struct, frozen=True, array_like=True):
    """Mutations of a table in one range. `since`: as the table says it. `asked`: parts of a range that is cut
    otherwise now, in order and apart from each other; what is held here of them was found out, and is named
    under the ranges that there are, so none of these is of them."""

    table: int
    since: int
    left: int
    right: int
    held: Held
    asked: tuple[Bounds, ...] = ()

    @property
    def place(self) -> Place:
        return self.table, self.since, self.left, self.right

    def is_open_in(self, left: int, right: int) -> bool:
        """Whether some may be of tokens between these."""
        left, right = max(left, self.left), min(right, self.right)
        return left < right and all(begin > left or end < right for begin, end in self.asked)

    def without(self, found: Held, left: int, right: int) -> Span:
        """All replicas of these tokens were asked, and `found` is what they hold of it."""
        part = (max(left, self.left), min(right, self.right))
        assert part[0] < part[1], "tokens of the range were asked for"
        asked = _joined((*self.asked, part))
        rest = NOTHING if asked == ((self.left, self.right),) else self.held.difference(found)
        return msgspec.structs.replace(self, held=rest, asked=asked if rest else ())


def _joined(parts: Sequence[Bounds]) -> tuple[Bounds, ...]:
    joined: list[Bounds] = []
    for left, right in sorted(parts):
        if joined and left <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], right))
        else:
            joined.append((left, right))
    return tuple(joined)


class _Token(msgspec.Struct, frozen=True, array_like=True):
    spans: tuple[Span, ...] = ()


_TOKENS = codec.decoder(_Token)


def encode(spans: Sequence[Span]) -> bytes:
    """Bytes for a payload; b"" of nothing. Spans that do not fit are left out, the last ones first."""
    kept = tuple(spans)
    assert len({span.place for span in kept}) == len(kept), "a range has one span"
    while kept:
        raw = codec.encode(_Token(kept))
        if len(raw) <= CAUSAL_TOKEN_BYTES_MAX:
            return raw
        kept = kept[:-1]
    return b""


def decode(raw: bytes) -> tuple[Span, ...]:
    """The spans of a token. InvalidRequest when it is none."""
    if not raw:
        return ()
    if len(raw) > CAUSAL_TOKEN_BYTES_MAX:
        raise InvalidRequest(f"a causal token has {CAUSAL_TOKEN_BYTES_MAX} bytes at most, not {len(raw)}")
    try:
        spans = _TOKENS.decode(raw).spans
    except codec.UNREADABLE as error:
        raise InvalidRequest("the causal token is none that a node gave") from error
    if not all(map(_is_sound, spans)) or len({span.place for span in spans}) < len(spans):
        raise InvalidRequest("the causal token is none that a node gave")
    return spans


def _is_sound(span: Span) -> bool:
    bounds = [bound for part in span.asked for bound in part]
    is_apart = all(one < other for one, other in pairwise((*bounds, span.right + 1)))
    is_within = not bounds or (span.left <= bounds[0] and is_apart)
    return span.left < span.right and span.held.is_sound and is_within


class Remembered:
    """What a client remembers between its requests, of at most so many ranges: those that it used last.
    `forgotten`: ranges of which it does not know any more what it saw."""

    def __init__(self, spans_max: int = CAUSAL_SPANS_MAX) -> None:
        assert spans_max > 0, "a client remembers something"
        self._spans_max = spans_max
        self._held: dict[Place, Held] = {}
        #: Of ranges that are cut otherwise by now: the parts of which all replicas were asked.
        self._asked: dict[Place, tuple[Bounds, ...]] = {}
        self.forgotten = 0

    @property
    def spans(self) -> tuple[Span, ...]:
        """The latest first."""
        asked = self._asked
        return tuple(Span(*place, held, asked.get(place, ())) for place, held in reversed(self._held.items()))

    def answered(self, sent: Sequence[Span], told: Sequence[Span]) -> None:
        """A request that was sent with these spans was answered with those: what is in the first alone is
        held by every replica by now. Other requests may have been answered meanwhile."""
        before: Mapping[Place, Held] = {span.place: span.held for span in sent}
        for span in reversed(told):
            settled = before.get(span.place, NOTHING).difference(span.held)
            known = self._held.pop(span.place, NOTHING).difference(settled).union(span.held)
            if known:
                self._held[span.place] = known
            # What else came meanwhile was asked for nowhere.
            self._asked.pop(span.place, None)
            if span.asked and known == span.held:
                self._asked[span.place] = span.asked
        self.forget(self._spans_max)
        assert all(self._held.values()), "what is remembered is not empty"
        assert self._asked.keys() <= self._held.keys(), "what is asked for is remembered"

    def forget(self, kept: int) -> None:
        """All but so many, used last."""
        while len(self._held) > kept:
            place = next(iter(self._held))
            del self._held[place]
            self._asked.pop(place, None)
            self.forgotten += 1
