"""What a step asks of its driver.

The contract of `Ready` (persist, then send, then apply):

1. *Persist* hard_state, snapshot, entries, in this order, as one record or as a sequence of which a crash
   leaves a prefix. A snapshot replaces the whole log. Entries replace everything from the first one's index.
   Writes may be queued and synced together; they complete in the order in which they were handed out.
   When one is durable, step `ready.persisted` (only the newest of a group commit is needed).
2. *Send* `messages` at once, also while writes are in flight: a leader's appends travel while its own disk
   works. Send `messages_after_persist` only when this Ready's write and every write handed out before it
   are durable: votes, requests for votes and acknowledgements promise what the disk holds. Messages may
   be dropped.
3. *Apply* `snapshot` to the state machine first, then `committed` in order. They are already durable here
   (the snapshot: once this Ready is), and each index is handed out once per incarnation.

A snapshot travels beside this, one chunk at a time, and its bytes are never kept by the machine:

- At the leader, `chunks_wanted` names bytes to read; step SnapshotChunk with them, or SnapshotFailed. Reading
  may take its time; the machine asks for one chunk per member at a time and asks again when one got lost.
- At the receiver, `snapshot_offered` names a snapshot that is about to come: answer SnapshotPresent when the
  state machine holds that state, else ChunkStored with the offset to begin at (what is left of an earlier
  transfer of an equal descriptor counts). Only one is being received at a time; a new offer replaces the
  one before. `chunk_received` holds bytes to store at their offset; answer ChunkStored. Until that answer no
  other chunk is handed out. After the last byte, or SnapshotPresent, that step's Ready has `snapshot`: the
  bytes are all there, and 1. and 3. hold: `ready.persisted` is stepped when the bytes and the descriptor
  are durable and the state machine has them (or surely will after a crash).

Invariant: a driver that keeps this contract may crash between any two of these actions.
"""

from __future__ import annotations

import enum

import msgspec

from lockstep.consensus.events import Persisted
from lockstep.consensus.messages import Entry, Message, Snapshot


class Role(enum.Enum):
    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre-candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


class Reason(enum.Enum):
    """Why an event was refused."""

    NOT_LEADER = "not-leader"
    TRANSFERRING = "transferring"
    TOO_MUCH_UNCOMMITTED = "too-much-uncommitted"
    TERM_NOT_COMMITTED = "term-not-committed"
    CONFIGURATION_PENDING = "configuration-pending"
    CONFIGURATION_INVALID = "configuration-invalid"
    TOO_MANY_READS = "too-many-reads"
    NOT_A_VOTER = "not-a-voter"


class HardState(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What must survive a crash beside the log; `vote` is the member voted for in `term`."""

    term: int = 0
    vote: int | None = None


class Stored(msgspec.Struct, frozen=True):
    """What a restarted node found on its disk.

    entries: consecutive, in index order; those the snapshot covers may still be there.
    applied_index: the last entry that this member's machine handed out and the durable state machine holds
        (at least the snapshot's index); entries up to it are known committed and are not handed out again.
        A state machine that got further another way does not count: the log may end in entries at such
        indices that were never committed.
    commit_index: any index known to have been committed; 0 is always right.
    """

    hard_state: HardState = HardState()
    snapshot: Snapshot | None = None
    entries: tuple[Entry, ...] = ()
    applied_index: int = 0
    commit_index: int = 0


class SoftState(msgspec.Struct, frozen=True):
    """Not durable; handed out when it changed. `leader` None means unknown."""

    role: Role
    term: int
    leader: int | None


class ReadState(msgspec.Struct, frozen=True):
    """The read named by `context` is linearizable once everything up to `index` is applied."""

    context: int
    index: int


class Accepted(msgspec.Struct, frozen=True):
    """The proposals took first_index..last_index at `term`; each is committed when, and only when, an entry
    of its index and this term is handed out as committed."""

    first_index: int
    last_index: int
    term: int


class Refused(msgspec.Struct, frozen=True):
    """Nothing was appended, started or queued; `leader` is whom to ask instead, if known."""

    reason: Reason
    leader: int | None


class ChunkWanted(msgspec.Struct, frozen=True):
    """Read at most bytes_max (and at least 1) of the snapshot's bytes from `offset` on, for `member`."""

    member: int
    snapshot: Snapshot
    offset: int
    bytes_max: int


class ChunkReceived(msgspec.Struct, frozen=True):
    """Store these bytes of the snapshot at `offset`, which is the next one wanted."""

    snapshot: Snapshot
    offset: int
    data: bytes


class Ready(msgspec.Struct, frozen=True):
    """All effects of one step; false when there are none. See the module for the contract.

    hard_state: to persist, or None when unchanged.
    snapshot: to persist and install; replaces log and state machine. Its bytes are already here.
    entries: to persist; replace everything from the first one's index.
    persisted: the event to step once all this is durable; None when there is nothing to persist.
    messages / messages_after_persist: see the contract; messages_after_persist is empty when no
        write is outstanding.
    committed: to apply, in order.
    soft_state: role, term or leader changed.
    read_states / reads_refused: answers to ReadIndex events, also earlier ones.
    accepted / refused: the answer to this step's Propose, ProposeConfiguration or TransferLeadership
        (a started transfer has no answer; watch soft_state).
    chunks_wanted / snapshot_offered / chunk_received: a snapshot's way; see the contract.
    """

    hard_state: HardState | None = None
    snapshot: Snapshot | None = None
    entries: tuple[Entry, ...] = ()
    persisted: Persisted | None = None
    messages: tuple[Message, ...] = ()
    messages_after_persist: tuple[Message, ...] = ()
    committed: tuple[Entry, ...] = ()
    soft_state: SoftState | None = None
    read_states: tuple[ReadState, ...] = ()
    reads_refused: tuple[int, ...] = ()
    accepted: Accepted | None = None
    refused: Refused | None = None
    chunks_wanted: tuple[ChunkWanted, ...] = ()
    snapshot_offered: Snapshot | None = None
    chunk_received: ChunkReceived | None = None

    @property
    def is_empty(self) -> bool:
        return not self

    def __bool__(self) -> bool:
        return bool(
            self.persisted
            or self.messages
            or self.messages_after_persist
            or self.committed
            or self.soft_state
            or self.read_states
            or self.reads_refused
            or self.accepted
            or self.refused
            or self.chunks_wanted
            or self.snapshot_offered
            or self.chunk_received
        )


NOTHING = Ready()
