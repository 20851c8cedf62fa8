"""Errors on the wire: a handler's error is raised again at the requester as the same class.

Invariant: every class of the error tree survives the trip with its attributes; a code this node does
not know becomes a LockstepError with the sender's message.
"""

from __future__ import annotations

import inspect
from typing import Any

import msgspec

from lockstep.values import errors
from lockstep.values.codec import UNREADABLE, decoder, encode
from lockstep.values.errors import FrameCorrupt, LockstepError

_CLASSES: dict[str, type[LockstepError]] = {
    kind.code: kind
    for _, kind in sorted(inspect.getmembers(errors, inspect.isclass))
    if issubclass(kind, LockstepError)
}


class ErrorBody(msgspec.Struct, frozen=True, array_like=True):
    """`facts` are the error's attributes as sorted (name, plain value) pairs."""

    code: str
    message: str
    facts: tuple[tuple[str, Any], ...] = ()


_BODY = decoder(ErrorBody)


def encode_error(error: LockstepError) -> bytes:
    facts = tuple(sorted(vars(error).items()))
    return encode(ErrorBody(error.code, error.message, facts))


def decode_error(body: bytes) -> LockstepError:
    """The error itself, to be raised. FrameCorrupt when the bytes are no error body."""
    try:
        decoded = _BODY.decode(body)
    except UNREADABLE as problem:
        raise FrameCorrupt(f"error body does not decode: {problem}") from problem
    kind = _CLASSES.get(decoded.code, LockstepError)
    error = kind.__new__(kind, decoded.message)
    vars(error).update(decoded.facts)
    return error
