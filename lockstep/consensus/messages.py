"""What members of a group send each other, and what a log entry and a snapshot are.

Invariant: every message names group, sender, receiver and the sender's term (a PreVoteRequest and a granted
PreVoteReply carry the term the election would have). Structs are array-like with integer tags: fields
are only ever appended, tags never reused.
"""

from __future__ import annotations

import enum

import msgspec

from lockstep.consensus.configuration import Configuration
from lockstep.values import codec


class EntryKind(enum.IntEnum):
    NORMAL = 0
    #: A leader's first entry: its commit proves everything before it committed. The group's first leader
    #: begins with the founding configuration instead.
    NOOP = 1
    #: Data is an encoded Configuration; in force from its append on.
    CONFIGURATION = 2


class Entry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One log entry; (index, term) identifies its content in all logs of the group."""

    index: int
    term: int
    kind: EntryKind
    data: bytes


class Snapshot(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Describes the state after applying the entry at `index`; the state itself never passes through Raft's
    memory. `data` is small and opaque here: it must identify the state's bytes, so that two equal
    descriptors mean equal bytes at every offset, whoever sends them. size_bytes: how many there are."""

    index: int
    term: int
    configuration: Configuration
    data: bytes
    size_bytes: int = 0


class PreVoteRequest(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=1):
    group: int
    sender: int
    receiver: int
    term: int
    last_index: int
    last_term: int


class PreVoteReply(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=2):
    group: int
    sender: int
    receiver: int
    term: int
    granted: bool


class VoteRequest(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=3):
    """`transfer`: the leader itself asked for this election, so leases do not stand in its way."""

    group: int
    sender: int
    receiver: int
    term: int
    last_index: int
    last_term: int
    transfer: bool = False


class VoteReply(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=4):
    group: int
    sender: int
    receiver: int
    term: int
    granted: bool


class Append(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=5):
    """Entries that follow (prev_index, prev_term); empty ones probe or carry a commit index. A quiet one only
    brings the commit index to a member that follows well: it is answered only when the logs do not match."""

    group: int
    sender: int
    receiver: int
    term: int
    prev_index: int
    prev_term: int
    entries: tuple[Entry, ...]
    commit: int
    quiet: bool = False


class AppendReply(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=6):
    """Accepted: the follower's log is durable and equal to the leader's up to `index`.
    Rejected: it has no entry matching prev_index = `index`; the logs may agree at most up to hint_index,
    whose term at the follower is hint_term."""

    group: int
    sender: int
    receiver: int
    term: int
    index: int
    rejected: bool = False
    hint_index: int = 0
    hint_term: int = 0


class Heartbeat(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=7):
    """`read_round` is echoed: a quorum of echoes proves leadership since the round began."""

    group: int
    sender: int
    receiver: int
    term: int
    commit: int
    read_round: int = 0


class HeartbeatReply(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=8):
    group: int
    sender: int
    receiver: int
    term: int
    read_round: int = 0


class InstallSnapshot(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=9):
    """Without data: an offer, which asks what the receiver wants. With data: the bytes from `offset` on."""

    group: int
    sender: int
    receiver: int
    term: int
    snapshot: Snapshot
    offset: int = 0
    data: bytes = b""


class TimeoutNow(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=10):
    """The leader asks the receiver to campaign at once."""

    group: int
    sender: int
    receiver: int
    term: int


class InstallReply(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=11):
    """The receiver wants the bytes of snapshot (index, snapshot_term) from `offset` on; at the snapshot's
    size it has them all and is installing. A receiver that has no need of it, or has installed it, sends
    an AppendReply instead."""

    group: int
    sender: int
    receiver: int
    term: int
    index: int
    snapshot_term: int
    offset: int


Message = (
    PreVoteRequest
    | PreVoteReply
    | VoteRequest
    | VoteReply
    | Append
    | AppendReply
    | Heartbeat
    | HeartbeatReply
    | InstallSnapshot
    | TimeoutNow
    | InstallReply
)

_DECODER: codec.Decoder[Message] = codec.decoder(Message)  # type: ignore[arg-type]


def encode_message(message: Message) -> bytes:
    return codec.encode(message)


def decode_message(data: bytes) -> Message:
    """One of codec.UNREADABLE when the bytes are no message."""
    return _DECODER.decode(data)
