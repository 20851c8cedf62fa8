"""What the job of a bulk load asks a node for, and is answered, over its connection for clients.

Invariant: each request may be sent again, to any node: what was done is not done twice.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from lockstep.replica.load_messages import LoadFile
from lockstep.schema.model import Table, UserType
from lockstep.values.codec import Decoder, decoder


class BeginRequest(msgspec.Struct, frozen=True, tag="begin"):
    """Begin a load, or renew it; with `dry_run` say only whether one could begin. `timestamp_us` 0: the
    node's time."""

    job: str
    keyspace: str
    table: str
    lease_ms: int
    overwrite: bool = False
    timestamp_us: int = 0
    dry_run: bool = False


class PutRequest(msgspec.Struct, frozen=True, tag="put"):
    """A part of a file, in order; with the last one the file goes to all its replicas."""

    job: str
    file: LoadFile
    offset: int
    data: bytes


class CommitRequest(msgspec.Struct, frozen=True, tag="commit"):
    """`holders`: nodes that have files, as `PutAnswer` tells them. `consistency` is a level's number."""

    job: str
    files: tuple[LoadFile, ...]
    holders: tuple[int, ...]
    consistency: int
    rows: int = 0


class AbortRequest(msgspec.Struct, frozen=True, tag="abort"):
    job: str
    reason: str


class LookRequest(msgspec.Struct, frozen=True, tag="look"):
    job: str


class ReadRequest(msgspec.Struct, frozen=True, tag="read"):
    """A part of a staged file, from a node that holds it: to be cut anew."""

    job: str
    name: str
    offset: int


LoadRequest: TypeAlias = BeginRequest | PutRequest | CommitRequest | AbortRequest | LookRequest | ReadRequest


class LoadAnswer(msgspec.Struct, frozen=True):
    """Of begin, abort and look. `ranges` are those of the table now, by the placements of `epoch`: a file has
    rows of one of them. `now_s`: the second from which times to live count. `table` is None when the load has
    ended, or its table is another one now. `state` is empty when it was only asked whether one could begin:
    then `timestamp_us` is the one that it would have."""

    job: str
    state: str
    reason: str
    stored_id: int
    timestamp_us: int
    now_s: int
    epoch: int
    ended_epoch: int = 0
    table: Table | None = None
    types: tuple[UserType, ...] = ()
    ranges: tuple[tuple[int, int], ...] = ()


class PutAnswer(msgspec.Struct, frozen=True):
    """`holders`: nodes that have the whole file; none before its last part."""

    holders: tuple[int, ...] = ()


class CommitAnswer(msgspec.Struct, frozen=True):
    """`cut`: files whose ranges went to different replicas: they are to be cut by `ranges`, and staged again.
    `lacking`: replicas that have not taken in what is theirs; `done`: enough of all ranges have."""

    state: str
    ended_epoch: int = 0
    done: bool = False
    cut: tuple[str, ...] = ()
    ranges: tuple[tuple[int, int], ...] = ()
    lacking: tuple[int, ...] = ()


class ReadAnswer(msgspec.Struct, frozen=True):
    found: bool
    data: bytes = b""


REQUEST: Decoder[LoadRequest] = decoder(LoadRequest)  # type: ignore[arg-type]
ANSWER = decoder(LoadAnswer)
PUT_ANSWER = decoder(PutAnswer)
COMMIT_ANSWER = decoder(CommitAnswer)
READ_ANSWER = decoder(ReadAnswer)
