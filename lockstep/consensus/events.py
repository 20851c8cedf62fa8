"""What may happen to a Raft machine: the inputs of `Raft.step`.

Invariant: nothing else moves the machine; in particular time passes only by Tick and a write becomes
durable only by Persisted.
"""

from __future__ import annotations

import msgspec

from lockstep.consensus.configuration import Configuration
from lockstep.consensus.messages import Message


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


class Compact(msgspec.Struct, frozen=True):
    """The driver holds a durable snapshot `data` of the state at `index` (applied); entries up to
    index - keep_entries may be forgotten. Members that lag behind that get the snapshot."""

    index: int
    data: bytes
    keep_entries: int = 0


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
    | Compact
)
