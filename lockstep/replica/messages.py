"""Bodies of the requests between coordinators and replicas.

`epoch` is the one the request was planned at. `needs_epoch` is the newest change that matters to it (of
its replica group and its table): a replica that has applied that much judges the request as well as one
that has applied everything up to `epoch`. Replies name the epoch at which the replica accepted.
"""

from __future__ import annotations

import msgspec

from lockstep.storage.sorted_file import FileSummary
from lockstep.values.rows import Mutation, ReadCommand, ReadResult


class WriteRequest(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`first_epoch`: of the first plan of a client's write to a table with views; 0 for all else, also for
    what is brought again."""

    epoch: int
    needs_epoch: int
    mutation: Mutation
    first_epoch: int = 0


class WriteReply(msgspec.Struct, frozen=True, array_like=True, gc=False):
    accepted_epoch: int


class ReadRequest(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`digest_over_bytes`: a larger answer is wanted as its digest only; 0 for none."""

    epoch: int
    needs_epoch: int
    command: ReadCommand
    digest_over_bytes: int = 0


class ReadReply(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """With a `digest` the result is empty and stands for the one that has it. `dead`: tombstones scanned."""

    accepted_epoch: int
    result: ReadResult
    digest: bytes = b""
    dead: int = 0


class StreamOpen(msgspec.Struct, frozen=True, array_like=True):
    """`from_key` is the store key from which on the target still lacks something, or b"": it is the start of
    a partition, for inside one the source may have merged fragments since."""

    session_id: str
    table_id: int
    left: int
    right: int
    epoch: int
    from_key: bytes = b""


class StreamOpened(msgspec.Struct, frozen=True, array_like=True):
    """`total_bytes` is an estimate of the whole range's content; `part_bytes` the largest part to ask for.
    `empty`: there is nothing, and no stream to ask."""

    stream_id: int
    epoch: int
    total_bytes: int
    file_bytes: int
    part_bytes: int
    empty: bool = False


class StreamNextFile(msgspec.Struct, frozen=True, array_like=True):
    """Ask for the header of file `number`, counted from 0. The target has made visible all before `done`:
    the source may forget them."""

    session_id: str
    stream_id: int
    number: int
    done: int


class StreamFile(msgspec.Struct, frozen=True, array_like=True):
    """The header of a sorted file, sent before its content. Not `ready`: it is being built, ask again.

    `last`: no file follows; the file of an empty range is the last one and has no entries. `mutations`: the
    encoded set of the mutation ids that the file covers; empty for tables that do not track mutations.
    """

    ready: bool
    version: int = 0
    number: int = 0
    table_id: int = 0
    left: int = 0
    right: int = 0
    summary: FileSummary | None = None
    last: bool = False
    mutations: bytes = b""


class StreamAskPart(msgspec.Struct, frozen=True, array_like=True):
    """Bytes of a file from `offset`; at most the `part_bytes` that the source named."""

    session_id: str
    stream_id: int
    number: int
    offset: int
    size: int


class StreamPart(msgspec.Struct, frozen=True, array_like=True):
    """Announces exactly the bytes asked for, which follow raw; or none, when the throttle has no turn for
    them yet: ask again."""

    size: int


class StreamClose(msgspec.Struct, frozen=True, array_like=True):
    stream_id: int
