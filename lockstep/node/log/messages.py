"""Bodies of the node-to-node messages that concern metadata, membership, topology work and the management
group.
"""

from __future__ import annotations

import msgspec

from lockstep.metadata.groups.management import Command, Refusal
from lockstep.metadata.log.entries import LogEntry
from lockstep.metadata.log.snapshot_file import SnapshotInfo
from lockstep.metadata.operations import Stage


class Submit(msgspec.Struct, frozen=True, array_like=True):
    """A transformation for the leader to judge. `base_epoch` is the submitter's epoch at first sending.

    Only the leader of `term` judges it: a copy that is late or doubled is then too late for any later
    leader, which could accept what was refused. 0 asks which term to name.
    """

    entry_id: bytes
    kind: int
    body: bytes
    actor: str
    base_epoch: int
    term: int = 0


class Submitted(msgspec.Struct, frozen=True, array_like=True):
    """The entry is committed at `epoch` (the first one, when the id had been seen before).

    Epoch 0: nothing was judged, for this node leads in `term`.
    """

    epoch: int
    term: int = 0


class FetchLog(msgspec.Struct, frozen=True, array_like=True):
    """Entries after an epoch. `entries_only`: no snapshot instead, unless there are no entries."""

    after: int
    entries_only: bool = False


class LogEntries(msgspec.Struct, frozen=True, array_like=True):
    """Committed and durable entries that follow the asked epoch; `epoch` is the answering node's.

    Where the first ones are not kept any more, or are many: no entries, and the snapshot to begin with.
    """

    epoch: int
    entries: tuple[LogEntry, ...]
    snapshot: SnapshotInfo | None = None


class FetchSnapshot(msgspec.Struct, frozen=True, array_like=True):
    """Bytes of a snapshot file from `offset`."""

    snapshot: SnapshotInfo
    offset: int


class SnapshotChunk(msgspec.Struct, frozen=True, array_like=True):
    """No bytes: the snapshot is not here."""

    data: bytes


class HashAt(msgspec.Struct, frozen=True, array_like=True):
    epoch: int


class HashReply(msgspec.Struct, frozen=True, array_like=True):
    """The hash of the asked epoch (empty: not applied here, or not kept), and this node's last entry."""

    hash: bytes
    last_term: int
    last_epoch: int
    last_hash: bytes


class KnownMember(msgspec.Struct, frozen=True, array_like=True):
    """A node of the cluster and where it listens for others."""

    id: int
    host_id: str
    address: str
    internode_port: int
    voter: bool


class AskMembers(msgspec.Struct, frozen=True, array_like=True):
    """Who is in the cluster? `epoch` is the asking node's."""

    epoch: int


class MemberList(msgspec.Struct, frozen=True, array_like=True):
    """All members at `epoch`, by id."""

    cluster_id: str
    epoch: int
    members: tuple[KnownMember, ...]


class Announce(msgspec.Struct, frozen=True, array_like=True):
    """The sender has applied `epoch`, whose hash is `hash`: a receiver sees whether it is of one history."""

    epoch: int = 0
    hash: bytes = b""


class EpochQuery(msgspec.Struct, frozen=True, array_like=True):
    """Apply `epoch`; with `drain`, also finish what was accepted under older epochs. Then answer."""

    epoch: int
    drain: bool = False


class EpochReply(msgspec.Struct, frozen=True, array_like=True):
    """`node`: who says so; 0 for one that has no id yet. `stragglers`: (session, guards) of sessions that are
    closed at `epoch` and still have effects under way there."""

    epoch: int
    node: int = 0
    stragglers: tuple[tuple[str, int], ...] = ()


class DescribeSelf(msgspec.Struct, frozen=True, array_like=True):
    """Asked by the leader of a founding cluster; `founders` must be the same list everywhere."""

    founders: tuple[str, ...]


class SelfDescription(msgspec.Struct, frozen=True, array_like=True):
    host_id: str
    address: str
    internode_port: int
    cql_port: int
    admin_port: int
    dc: str
    rack: str
    version: str
    num_tokens: int
    epoch: int
    #: Of the cluster it belongs to, and whether that one has the asker in its directory.
    cluster_id: str = ""
    knows_asker: bool = False
    #: Host ids of all founders, once this one is bound to them.
    bound: tuple[str, ...] = ()
    log_version: int = 1
    features: tuple[str, ...] = ()


class RunWork(msgspec.Struct, frozen=True, array_like=True):
    """Do (or go on with) the work of one stage; answered when done, failed, or after a short wait.

    `node`: who is to do it. Another one at its address has no part in it, and must not say that it is done.
    """

    operation_id: int
    stage: Stage
    session_id: str
    epoch: int
    node: int


class WorkStatus(msgspec.Struct, frozen=True, array_like=True):
    """state: running, done or failed; units are bytes and fragments moved so far.

    `definite`: it failed for a reason that asking again does not mend. `total_bytes` and `files_total` are
    estimates (0: unknown), `left_s` is -1 when nobody can tell. A table is done when all its ranges are.
    `taken_bytes` and `taken_fragments` are what the operation's streams made durable here in this stage, or
    in the one that was taken back; -1 when the node does not know any more.
    """

    state: str
    text: str = ""
    moved_bytes: int = 0
    moved_fragments: int = 0
    definite: bool = False
    total_bytes: int = 0
    rate_bytes_s: int = 0
    left_s: int = -1
    files_done: int = 0
    files_total: int = 0
    ranges_done: int = 0
    ranges_total: int = 0
    tables_done: int = 0
    tables_total: int = 0
    taken_bytes: int = -1
    taken_fragments: int = 0


class Ping(msgspec.Struct, frozen=True, array_like=True):
    """A sign of life; question and answer alike. `leads`: the sender leads the metadata group. `node`: its
    id, 0 while it has none. `asked_us`: the steady clock of who asks; an answer brings it back, with the
    answering node's wall clock in `wall_us`. Older versions leave both 0."""

    generation: int
    leads: bool = False
    node: int = 0
    asked_us: int = 0
    wall_us: int = 0


class AskForMe(msgspec.Struct, frozen=True, array_like=True):
    """Does this node give you a sign of life?"""

    node: int


class Answers(msgspec.Struct, frozen=True, array_like=True):
    """Whether it answered just now."""

    alive: bool


class Manage(msgspec.Struct, frozen=True, array_like=True):
    """A command for the group's leader. A `base_index` of -1 asks which index to name."""

    command: Command


class Managed(msgspec.Struct, frozen=True, array_like=True):
    """The command's outcome, at its first index. Index 0: nothing was proposed; name `base_index`."""

    index: int
    refusal: Refusal | None = None
    base_index: int = 0


class AskGroup(msgspec.Struct, frozen=True, array_like=True):
    group: int


class GroupReport(msgspec.Struct, frozen=True, array_like=True):
    """What a node says of its part in a group, without asking anyone else.

    state: a word of LocalState, and part one of Part; both empty when the node has no part in the group.
    term, index: of the last entry it holds. epoch, hash: of the last state it applied (of the management
    group: index and chained hash of the last command). voters, outgoing: the newest configuration it knows.
    """

    group: int
    node: int
    state: str
    part: str
    term: int
    index: int
    epoch: int
    hash: bytes
    voters: tuple[int, ...]
    outgoing: tuple[int, ...] = ()
    leader: int | None = None
    reason: str = ""
    learners: tuple[int, ...] = ()
    #: The configuration is committed, so whom it leaves out is out.
    settled: bool = False
