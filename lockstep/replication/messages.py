"""Bodies of the requests between coordinators and replicas.

`epoch` is the one the request was planned at. `needs_epoch` is the newest change that matters to it (of
its replica group and its table): a replica that has applied that much judges the request as well as one
that has applied everything up to `epoch`. Replies name the epoch at which the replica accepted.
"""

from __future__ import annotations

import msgspec

from lockstep.values.rows import Mutation, ReadCommand, ReadResult


class WriteRequest(msgspec.Struct, frozen=True, array_like=True, gc=False):
    epoch: int
    needs_epoch: int
    mutation: Mutation


class WriteReply(msgspec.Struct, frozen=True, array_like=True, gc=False):
    accepted_epoch: int


class ReadRequest(msgspec.Struct, frozen=True, array_like=True, gc=False):
    epoch: int
    needs_epoch: int
    command: ReadCommand


class ReadReply(msgspec.Struct, frozen=True, array_like=True, gc=False):
    accepted_epoch: int
    result: ReadResult


class StreamOpen(msgspec.Struct, frozen=True, array_like=True):
    """`after` is the last store key the target has, or b"": the source goes on with that key's whole
    partition again, because its fragments may have been merged since."""

    session_id: str
    table_id: int
    left: int
    right: int
    epoch: int
    after: bytes = b""


class StreamOpened(msgspec.Struct, frozen=True, array_like=True):
    stream_id: int
    epoch: int


class StreamNext(msgspec.Struct, frozen=True, array_like=True):
    """Ask for chunk number `sequence`, counted from 0; the last one served may be asked again."""

    stream_id: int
    sequence: int


class StreamChunk(msgspec.Struct, frozen=True, array_like=True):
    """`pairs` is the encoded list of (key, value), ascending; `digest` is over all chunks so far and
    set on the `last` one."""

    sequence: int
    pairs: bytes
    crc: int
    last: bool
    digest: bytes = b""


class StreamClose(msgspec.Struct, frozen=True, array_like=True):
    stream_id: int
