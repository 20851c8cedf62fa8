"""Running topology operations and their sessions, as values inside the metadata.

Everything a coordinator needs to continue an operation is here, so that any node can. What the stages
mean is said by topology.stages; this module only names them. Which ranges an operation moves is in
`metadata.transitions`.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, Final, Protocol, runtime_checkable

import msgspec

from lockstep.metadata.log.comparison import Difference, compare
from lockstep.metadata.part import Item, Part, collected, digest_of, digest_of_each
from lockstep.values.ids import NodeId


class About(msgspec.Struct, frozen=True):
    """What the log must know of an operation, or of a request for one, whatever its kind.

    `kind` is its kind's name. `precedence`: of what waits, the lower goes first. `nodes`: whose place in the
    ring it changes, its own node first; another operation leaves them alone. `tokens`: those asked for.
    `departing`: who is gone when it succeeds. `presumed_dead`: who it was told is dead: never a source, never
    counted as having seen a step. `keyspace`: whose replication it changes. `is_global`: beside it no
    operation on the ring runs.
    """

    kind: str
    precedence: int
    nodes: tuple[NodeId, ...] = ()
    tokens: tuple[int, ...] = ()
    departing: NodeId = NodeId(0)
    presumed_dead: NodeId = NodeId(0)
    keyspace: str = ""
    is_global: bool = False

    @property
    def node(self) -> NodeId:
        """Its own node; 0 when none."""
        return self.nodes[0] if self.nodes else NodeId(0)

    @property
    def replaced(self) -> NodeId:
        """The node whose place its own takes; 0 when none."""
        return NodeId(0) if self.departing == self.node else self.departing


@runtime_checkable
class Body(Protocol):
    """What is a kind's own in an operation, or in a request for one: a struct with a tag."""

    @property
    def about(self) -> About: ...

    @property
    def kind(self) -> object:
        """All that makes the kind, for the rooms that know it."""
        ...


class Stage(enum.StrEnum):
    """Position of an operation.

    A kind begins with `prepared`, or `join_group0` when a node comes in, and drops the old side in
    `new_only`, or `left_token_ring` when a node departs. `commit_cdc_generation` is that of a node which
    joins with tokens: the ring gets streams of change data capture for its ranges as they will be. Those from
    `allow_write_both_read_old` on are of tablets alone, which share `write_both_read_old`,
    `write_both_read_new` and `cleanup` with the others.
    """

    PREPARED = "prepared"
    JOIN_GROUP0 = "join_group0"
    COMMIT_CDC_GENERATION = "commit_cdc_generation"
    WRITE_BOTH_READ_OLD = "write_both_read_old"
    WRITE_BOTH_READ_NEW = "write_both_read_new"
    NEW_ONLY = "new_only"
    LEFT_TOKEN_RING = "left_token_ring"
    CLEANUP = "cleanup"
    REBUILDING = "rebuilding"
    ROLLBACK_TO_NORMAL = "rollback_to_normal"
    ALLOW_WRITE_BOTH_READ_OLD = "allow_write_both_read_old"
    STREAMING = "streaming"
    WRITE_BOTH_READ_OLD_FALLBACK_CLEANUP = "write_both_read_old_fallback_cleanup"
    USE_NEW = "use_new"
    END_MIGRATION = "end_migration"
    CLEANUP_TARGET = "cleanup_target"
    REVERT_MIGRATION = "revert_migration"


class Operation(msgspec.Struct, frozen=True, array_like=True, dict=True):
    """A topology operation in progress.

    `tokens` are those the node will own, gives up or keeps. `stage_epoch` is the epoch of the entry that
    entered `stage`; `history` lists (stage, epoch) of every stage so far, the present one last. `session_id`
    is the open session of this stage's work, or empty. `step` counts how often it began with its first stage,
    for a kind that does so more than once. `counted_bytes` and `counted_fragments` are what its request has
    counted of the streams that go on.
    """

    id: int
    body: Body
    tokens: tuple[int, ...]
    stage: Stage
    stage_epoch: int
    session_id: str = ""
    history: tuple[tuple[Stage, int], ...] = ()
    cancel_reason: str = ""
    step: int = 0
    counted_bytes: int = 0
    counted_fragments: int = 0

    @cached_property
    def about(self) -> About:
        return self.body.about

    @property
    def kind(self) -> str:
        return self.about.kind

    @property
    def node(self) -> NodeId:
        return self.about.node

    @property
    def earlier(self) -> tuple[Stage, ...]:
        """The stages before this one."""
        return tuple(stage for stage, _ in self.history[:-1])

    @property
    def session_prefix(self) -> str:
        """How the names of all its sessions begin."""
        return f"operation-{self.id}-"

    def title(self) -> str:
        """How people refer to it: `operation 7 (bootstrap of node 4)`."""
        about = self.about
        if about.keyspace:
            return f"operation {self.id} ({about.kind} of keyspace {about.keyspace})"
        if about.replaced:
            return f"operation {self.id} ({about.kind} of node {about.replaced} by node {about.node})"
        return f"operation {self.id} ({about.kind} of node {about.node})"


class Session(msgspec.Struct, frozen=True, array_like=True, dict=True):
    """Under which work may have side effects; its absence from the metadata fences stragglers."""

    id: str
    operation_id: int
    stage: Stage
    opened_epoch: int


class Operations(msgspec.Struct, frozen=True, dict=True):
    """What runs: all sorted by operation id; a session belongs to each operation that has work under way."""

    running: tuple[Operation, ...] = ()
    sessions: tuple[Session, ...] = ()
    next_id: int = 1

    @cached_property
    def by_id(self) -> dict[int, Operation]:
        return {operation.id: operation for operation in self.running}

    @cached_property
    def sessions_by_id(self) -> dict[str, Session]:
        return {session.id: session for session in self.sessions}

    def with_changed(self, changed: Operation) -> Operations:
        """With another value of an operation that runs, whose session is that of its stage, or as the last
        one."""
        known = self.by_id.get(changed.id)
        assert known is not None or changed.id >= self.next_id, "an operation's id is never given twice"
        assert known is None or known.stage_epoch <= changed.stage_epoch, (
            "a stage is entered after the one before"
        )
        others = [one for one in self.running if one.id < changed.id]
        later = [one for one in self.running if one.id > changed.id]
        sessions = [one for one in self.sessions if one.operation_id != changed.id]
        if changed.session_id:
            sessions.append(Session(changed.session_id, changed.id, changed.stage, changed.stage_epoch))
        return Operations(
            (*others, changed, *later),
            tuple(sorted(sessions, key=lambda session: session.operation_id)),
            max(self.next_id, changed.id + 1),
        )

    def without(self, operation_id: int) -> Operations:
        """Without an operation that has ended, and its session."""
        assert operation_id in self.by_id, "an operation ends once"
        return Operations(
            tuple(one for one in self.running if one.id != operation_id),
            tuple(one for one in self.sessions if one.operation_id != operation_id),
            self.next_id,
        )

    def validate(self) -> None:
        ids = [operation.id for operation in self.running]
        assert ids == sorted(set(ids)), "operations are sorted by id"
        assert not ids or ids[-1] < self.next_id, "operation ids are never reused"
        open_sessions = [operation.session_id for operation in self.running if operation.session_id]
        assert sorted(s.id for s in self.sessions) == sorted(open_sessions), "sessions match operations"
        for session in self.sessions:
            operation = self.by_id[session.operation_id]
            assert session.stage is operation.stage, "a session is that of its operation's stage"
        for operation in self.running:
            epochs = [epoch for _, epoch in operation.history]
            assert epochs == sorted(epochs), "stages follow each other"
            assert not epochs or epochs[-1] <= operation.stage_epoch, "the present stage is the newest"


NO_OPERATIONS = Operations()


def _items(value: Operations) -> Iterator[Item]:
    for kind, elements in enumerate((value.running, value.sessions)):
        for element in elements:
            yield kind, element
    yield 2, value.next_id


def _of_items(items: Sequence[Item]) -> Operations:
    lists: tuple[list[Any], ...] = ([], [], [])
    for kind, value in items:
        lists[kind].append(value)
    running, sessions, next_id = lists
    return Operations(tuple(running), tuple(sessions), *next_id)


def _compare(path: str, before: Operations, after: Operations) -> Iterator[Difference]:
    yield from compare("operations", before.running, after.running)
    yield from compare("sessions", before.sessions, after.sessions)
    yield from compare("next_operation_id", before.next_id, after.next_id)


OPERATIONS: Final[Part[Operations]] = Part(
    name="operations",
    number=5,
    empty=NO_OPERATIONS,
    items=_items,
    kinds=(Operation, Session, int),
    builder=collected(_of_items),
    digest=lambda value: digest_of(
        (
            digest_of_each(value.running, value.next_id),
            digest_of_each(value.sessions),
        )
    ),
    validate=lambda now, before: now[OPERATIONS].validate(),
    compare=_compare,
)
