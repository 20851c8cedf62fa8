"""Digests in place of answers: replicas that are asked only whether they agree say so in a few bytes.

Invariant: two digests are equal exactly when the answers are (but for chance, one in 2^128): an answer is
canonical, so equal content gives equal bytes however its fragments were written and merged.
"""

from __future__ import annotations

import mmh3

from lockstep.replica.messages import ReadReply, ReadRequest
from lockstep.storage.rows.visible import weigh
from lockstep.values.codec import encode
from lockstep.values.rows import ReadResult

_NOTHING = ReadResult(())


def digest_of(result: ReadResult) -> bytes:
    """16 bytes. Not a cryptographic hash: who could forge one may write what is compared as well."""
    return mmh3.hash_bytes(encode(result))


def reply_to(request: ReadRequest, accepted_epoch: int, result: ReadResult) -> ReadReply:
    """The answer itself, or its digest where the request wants that of an answer so large."""
    if not result.partitions:
        return ReadReply(accepted_epoch, result)
    dead, size_bytes = weigh(result.partitions, request.command.now_s)
    if 0 < request.digest_over_bytes < size_bytes:
        return ReadReply(accepted_epoch, _NOTHING, digest_of(result), dead)
    return ReadReply(accepted_epoch, result, b"", dead)


def filled_in(reply: ReadReply, by_digest: dict[bytes, ReadResult]) -> ReadReply | None:
    """A digest's reply with the answer that it stands for; None when nobody gave that answer."""
    result = by_digest.get(reply.digest)
    return None if result is None else ReadReply(reply.accepted_epoch, result, b"", reply.dead)
