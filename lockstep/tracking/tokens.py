"""Causal tokens: the mutations that one client has written or was shown, told to whoever coordinates next.

A token names them by range, as it was cut when they were seen, and by id. What every replica holds is left
out of it: that is shown by any of them. Invariant: `decode(encode(spans)) == spans`, and what `decode` takes
from a client is well formed and within `CAUSAL_TOKEN_BYTES_MAX`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from lockstep.tracking.held import NOTHING, Held
from lockstep.tracking.limits import CAUSAL_SPANS_MAX, CAUSAL_TOKEN_BYTES_MAX
from lockstep.values import codec
from lockstep.values.errors import InvalidRequest

#: Key in the custom payloads of requests, whose value is a token or empty, and of their answers.
TOKEN_KEY: Final = "lockstep-causal"

#: A placement group, the token behind which one of its ranges begins, and the range's last one.
Place = tuple[int, int, int]


class Span(msgspec.Struct, frozen=True, array_like=True):
    """Mutations of one range."""

    group: int
    left: int
    right: int
    held: Held

    @property
    def place(self) -> Place:
        return self.group, self.left, self.right


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
    return span.left < span.right and span.held.is_sound


class Remembered:
    """What a client remembers between its requests, of at most so many ranges: those that it used last.
    `forgotten`: ranges of which it does not know any more what it saw."""

    def __init__(self, spans_max: int = CAUSAL_SPANS_MAX) -> None:
        assert spans_max > 0, "a client remembers something"
        self._spans_max = spans_max
        self._held: dict[Place, Held] = {}
        self.forgotten = 0

    @property
    def spans(self) -> tuple[Span, ...]:
        """The latest first."""
        return tuple(Span(*place, held) for place, held in reversed(self._held.items()))

    def answered(self, sent: Sequence[Span], told: Sequence[Span]) -> None:
        """A request that was sent with these spans was answered with those: what is in the first alone is
        held by every replica by now. Other requests may have been answered meanwhile."""
        before: Mapping[Place, Held] = {span.place: span.held for span in sent}
        for span in reversed(told):
            settled = before.get(span.place, NOTHING).difference(span.held)
            known = self._held.pop(span.place, NOTHING).difference(settled).union(span.held)
            if known:
                self._held[span.place] = known
        while len(self._held) > self._spans_max:
            del self._held[next(iter(self._held))]
            self.forgotten += 1
        assert all(self._held.values()), "what is remembered is not empty"
