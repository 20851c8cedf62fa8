"""What may happen to a Raft machine: the inputs of `Raft.step`.

Invariant: nothing else moves the machine; in particular time passes only by Tick and a write becomes
durable only by Persisted.
"""

from __future__ import annotations

import msgspec

from lockstep.consensus.configuration import Configuration
from lockstep.consensus.messages import Message, Snapshot


class Tick(msgspec.Struct, frozen=True):
    """One unit of the settings' time has passed."""


class Propose(msgspec.Struct, frozen=True):
    """Append these data as entries; Ready.accepted or Ready.refused answers, for all of them together."""

    data: tuple[bytes, ...]


class ProposeConfiguration(msgspec.Struct, frozen=True):
    """Change the membership to `target` (not joint). The machine takes the joint step and leaves it again
    by itself when more than one voter differs."""

    target: Configuration


class Received(msgspec.Struct, frozen=True):
    """A message for this group and node; any message may be lost, late, doubled or out of order."""

    message: Message


class Persisted(msgspec.Struct, frozen=True):
    """The write that Ready.persisted named is durable, and so is every write handed out before it."""

    sequence: int


class ReadIndex(msgspec.Struct, frozen=True):
    """Confirm leadership and say which index a linearizable read must see; `context` comes back in
    Ready.read_states or Ready.reads_refused."""

    context: int


class TransferLeadership(msgspec.Struct, frozen=True):
    """Hand leadership to a voter; proposals are refused until it happened or an election timeout passed."""

    target: int


class Campaign(msgspec.Struct, frozen=True):
    """Start an election now (with its pre-vote when the settings say so)."""


class Unreachable(msgspec.Struct, frozen=True):
    """The connection to a member broke: what was in flight to it is probably lost."""

    peer: int


class ForgetLeader(msgspec.Struct, frozen=True):
    """A follower's driver knows that the leader is gone: its lease no longer stands in the way of elections.
    Nothing happens to a leader or a candidate; a leader that still lives is followed again."""


class Compact(msgspec.Struct, frozen=True):
    """The driver holds a durable snapshot of the state at `index` (applied): size_bytes bytes, identified by
    the small opaque `data`. Entries up to index - keep_entries are forgotten here; members that lag behind
    that get the snapshot. `Raft.snapshot` is then the descriptor that the driver must have durable before
    it removes those entries from its own disk."""

    index: int
    data: bytes
    size_bytes: int = 0
    keep_entries: int = 0


# A snapshot's way, at the leader


class SnapshotChunk(msgspec.Struct, frozen=True):
    """The bytes that Ready.chunks_wanted asked for: 1..bytes_max of them, from `offset` on. Late ones, for a
    transfer that ended or moved on, are ignored."""

    member: int
    snapshot: Snapshot
    offset: int
    data: bytes


class SnapshotFailed(msgspec.Struct, frozen=True):
    """The wanted bytes cannot be read (a newer snapshot replaced the file, it is damaged): the transfer ends;
    the member is offered the newest snapshot when it next answers."""

    member: int
    snapshot: Snapshot


# A snapshot's way, at the receiver


class ChunkStored(msgspec.Struct, frozen=True):
    """The answer to Ready.snapshot_offered and to Ready.chunk_received: all bytes before next_offset are
    stored (they need not be durable yet) and the next ones are wanted. 0 at the start, more when a part is
    left from an earlier transfer or incarnation, less than before when what was stored turned out damaged.
    At the snapshot's size the bytes are complete *and verified*: the machine installs it at once."""

    snapshot: Snapshot
    next_offset: int


class SnapshotPresent(msgspec.Struct, frozen=True):
    """Another answer to Ready.snapshot_offered: the state machine already holds that state or a later one
    (it came another way), so no byte has to travel. The machine goes on as after the last chunk."""

    snapshot: Snapshot


Event = (
    Tick
    | Propose
    | ProposeConfiguration
    | Received
    | Persisted
    | ReadIndex
    | TransferLeadership
    | Campaign
    | Unreachable
    | ForgetLeader
    | Compact
    | SnapshotChunk
    | SnapshotFailed
    | ChunkStored
    | SnapshotPresent
)
