"""Bodies of the requests to replicas: of coordinators, of those who propose conditional writes, and of the
nodes that drive repairs.

`epoch` is the one the request was planned at. `needs_epoch` is the newest change that matters to it (of its
replica group and its table): a replica that has applied that much judges the request as well as one that has
applied everything up to `epoch`. Replies name the epoch at which the replica accepted.

`epoch` and `needs_epoch` are as in `messages`: ballots move and are fenced as writes are. Every request names
its partition.

Invariant: every question names the repair's session; it is refused once that is closed where it arrives.
Fields are only appended.
"""

from __future__ import annotations

import enum

import msgspec

from lockstep.consensus.paxos import Acceptor, Ballot, Proposal
from lockstep.storage.store import FileSummary
from lockstep.tracking.held import NOTHING, Held, MutationId
from lockstep.values.rows import Mutation, ReadCommand, ReadResult
from lockstep.values.tokens import Range


class WriteRequest(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`first_epoch`: of the first plan of a client's write to a table with views; 0 for all else, also for
    what is brought again. `tracking`: the id under which replicas of a tracked table keep the mutation."""

    epoch: int
    needs_epoch: int
    mutation: Mutation
    first_epoch: int = 0
    tracking: MutationId | None = None


class WriteReply(msgspec.Struct, frozen=True, array_like=True, gc=False):
    accepted_epoch: int


class Tracking(enum.IntEnum):
    """What a read of a tracked table asks of a replica."""

    #: The table is not tracked, or one replica suffices.
    NONE = 0
    #: Its answer, and which mutations are in it.
    DATA = 1
    #: Only which mutations it holds.
    SUMMARY = 2


class Known(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Which mutations a replica holds. `held`, with an answer: all of the range, of the instant of the
    answer; without one: those that every replica holds. `recent`: the others, of what is read at least. Logs
    that are over, since their node started again and all replicas hold them, are not in `held`, but in the
    digest `over`, unless all were asked for.
    `apart`: those of them that nobody can be brought one by one; `holders`: other replicas that told that
    they hold all of these. `partial`: the tables have parts of mutations that are not named, so this is no
    answer with data. `whole`: all that is held of the range, without an answer, where that was asked for.
    `open`: while a replica is away, all of the range that has entries, of whatever partition: another one may
    have let go of the entries of these, and tells them apart."""

    held: Held
    recent: Held
    apart: Held = NOTHING
    holders: tuple[int, ...] = ()
    partial: bool = False
    over: bytes = b""
    whole: Held = NOTHING
    open: Held = NOTHING


class ReadRequest(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`digest_over_bytes`: a larger answer is wanted as its digest only; 0 for none. `lists_all`: all that is
    held of a tracked table is to be listed. `names_held`: without an answer too all of the range is named."""

    epoch: int
    needs_epoch: int
    command: ReadCommand
    digest_over_bytes: int = 0
    tracking: Tracking = Tracking.NONE
    lists_all: bool = False
    names_held: bool = False


class ReadReply(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """With a `digest` the result is empty and stands for the one that has it. `dead`: tombstones scanned."""

    accepted_epoch: int
    result: ReadResult
    digest: bytes = b""
    dead: int = 0
    known: Known | None = None


class StreamSurvey(msgspec.Struct, frozen=True, array_like=True):
    """Ask of which tables the source holds anything in a range, rows or ballots."""

    session_id: str
    table_ids: tuple[int, ...]
    left: int
    right: int
    epoch: int


class StreamSurveyed(msgspec.Struct, frozen=True, array_like=True):
    """Those that are to be streamed: of the others there is nothing."""

    table_ids: tuple[int, ...]


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


class Place(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One partition of one table."""

    table_id: int
    token: int
    key: bytes


class PrepareRequest(msgspec.Struct, frozen=True, array_like=True):
    """`command`: what is to be read in the step of the promise. NO_BALLOT asks for no promise."""

    epoch: int
    needs_epoch: int
    place: Place
    ballot: Ballot
    command: ReadCommand


class PrepareReply(msgspec.Struct, frozen=True, array_like=True):
    """`result` None: no promise, for `state` has one that is not older. `known`, of a tracked table: which
    mutations the replica held in the instant of the result."""

    accepted_epoch: int
    state: Acceptor
    result: ReadResult | None
    known: Known | None = None


class ProposeRequest(msgspec.Struct, frozen=True, array_like=True):
    """`decides`: whoever accepts this makes a quorum, so it is decided then, and is to be applied."""

    epoch: int
    needs_epoch: int
    place: Place
    proposal: Proposal
    decides: bool = False


class ProposeReply(msgspec.Struct, frozen=True, array_like=True):
    """`floor`: what another ballot has to be later than, when it was not accepted."""

    accepted_epoch: int
    accepted: bool
    floor: Ballot
    applied: bool = False


class CommitRequest(msgspec.Struct, frozen=True, array_like=True):
    """`tracking`: the id of what was decided, of a tracked table; None: whoever applies it gives one."""

    epoch: int
    needs_epoch: int
    place: Place
    proposal: Proposal
    tracking: MutationId | None = None


class CommitReply(msgspec.Struct, frozen=True, array_like=True):
    """`given`: the id under which what was decided is held, of a tracked table."""

    accepted_epoch: int
    given: MutationId | None = None


class AskTree(msgspec.Struct, frozen=True, array_like=True):
    """The digests of these leaves (sorted, disjoint). What may be purged before `before_s` counts as gone."""

    session_id: str
    epoch: int
    table_id: int
    leaves: tuple[Range, ...]
    before_s: int


class Tree(msgspec.Struct, frozen=True, array_like=True):
    """`ready` False: it is being built, ask again."""

    ready: bool
    leaves: bytes = b""


class AskRows(msgspec.Struct, frozen=True, array_like=True):
    """Answered with a ReadResult."""

    session_id: str
    epoch: int
    command: ReadCommand


class Mend(msgspec.Struct, frozen=True, array_like=True):
    """Changes that this participant lacks; answered once they are durable."""

    session_id: str
    epoch: int
    mutations: tuple[Mutation, ...]


class Mended(msgspec.Struct, frozen=True, array_like=True):
    applied: int


class About(enum.IntEnum):
    """What a note is about."""

    #: What is this node yet to deliver to others?
    UNDELIVERED = 1
    #: How much do you hold of these ranges? From now on the node notes what is written to them.
    EXTENT = 2
    #: These ranges are equal now on all their replicas.
    EQUAL = 3
    #: As EXTENT; and what of these ranges may have changed since they were last repaired?
    CHANGES = 4


class Note(msgspec.Struct, frozen=True, array_like=True):
    session_id: str
    epoch: int
    about: About
    table_id: int = 0
    ranges: tuple[Range, ...] = ()


class Noted(msgspec.Struct, frozen=True, array_like=True):
    """`oldest_us`: when the oldest write was made that this node is yet to deliver; -1: there is none.
    `bytes`: an estimate. `changed`: parts of the ranges, of an answer to CHANGES. `at_us`: of an answer to
    UNDELIVERED, the time on this node's clock, by which `oldest_us` is told too; it dates no deletion back
    behind it. 0: it does not say."""

    oldest_us: int = -1
    bytes: int = 0
    changed: tuple[Range, ...] = ()
    at_us: int = 0


class AskedRange(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A range as the asker knows it: its replicas changed last at the epoch `since`."""

    left: int
    right: int
    since: int


class AskIds(msgspec.Struct, frozen=True, array_like=True):
    """What does this participant hold, durably, of these ranges of tracked tables?"""

    session_id: str
    epoch: int
    group: int
    ranges: tuple[AskedRange, ...]


class ToldIds(msgspec.Struct, frozen=True, array_like=True):
    """By range, in order. None: this node is getting rows of mutations of the range that it cannot name
    yet."""

    epoch: int
    held: tuple[Held | None, ...]
