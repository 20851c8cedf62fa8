"""The stages of an operation, as tables: what a row says, the tables that kinds share, and their soundness.

A row says who reads and writes while the stage lasts, what must be drained before the work to do, and where
success and failure lead; every stage has a barrier. Invariant (checked by `problems`): every path ends, a
stage that streams drains its sources first, and reads never move before the write-both stage that fills the
new replicas.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence

import msgspec

from lockstep.metadata.operations import Stage
from lockstep.metadata.transitions import Transition
from lockstep.schema.model import Replication
from lockstep.values.ids import NodeId
from lockstep.values.tokens import Range


class Side(enum.StrEnum):
    """Which replicas of a transition."""

    OLD = "old"
    UNION = "union"
    NEW = "new"


class Drain(enum.StrEnum):
    """Whose older requests must be finished, beside having seen the step, before the stage's work."""

    NONE = "none"
    SOURCES = "sources"
    WORKERS = "workers"
    ALL = "all"


class Work(enum.StrEnum):
    """What nodes do in the stage, under its session.

    WIPE and STREAM are for pending replicas, CLEANUP for those that lost a range and still live, and for a
    living node that leaves, DISCARD for
    those that were to gain one, did not, and still live, REBUILD for the one node that fills its own ranges
    again.
    """

    NONE = "none"
    WIPE = "wipe"
    STREAM = "stream"
    CLEANUP = "cleanup"
    DISCARD = "discard"
    REBUILD = "rebuild"


#: Work that copies from other replicas.
STREAMING = (Work.STREAM, Work.REBUILD)
#: Work that deletes what its nodes do not own (any more).
DELETING = (Work.CLEANUP, Work.DISCARD)


class StageRow(msgspec.Struct, frozen=True, kw_only=True):
    """`next` None: the operation ends with the entry that leaves this stage.

    Without `on_failure` it is past the point of return, the operation only goes forward. `in_use` lists the
    groups that some coordinator may still use while the barrier runs; `pending_votes` counts the
    union's write quorum with its pending replicas, as coordinators do (a cancelled newcomer may be dead
    and must not block the way back).
    """

    stage: Stage
    writes: Side
    reads: Side
    in_use: tuple[Side, ...]
    drain: Drain = Drain.NONE
    work: Work = Work.NONE
    next: Stage | None
    on_failure: Stage | None = None
    pending_votes: bool = False


#: The way back of a range movement: the new replicas are written no more, and drop what they received.
_ROLLBACK = StageRow(
    stage=Stage.ROLLBACK_TO_NORMAL,
    writes=Side.OLD,
    reads=Side.OLD,
    in_use=(Side.OLD, Side.UNION),
    drain=Drain.WORKERS,
    work=Work.DISCARD,
    next=None,
    pending_votes=True,
)


def range_movement(first: Stage, last: Stage, *before_writes: StageRow) -> tuple[StageRow, ...]:
    """The rows of a kind that moves ranges; `first` and `last` name the stages before and after both sides
    are written. `before_writes` come after the first."""
    return (
        StageRow(
            stage=first,
            writes=Side.OLD,
            reads=Side.OLD,
            in_use=(Side.OLD, Side.UNION),
            work=Work.WIPE,
            next=before_writes[0].stage if before_writes else Stage.WRITE_BOTH_READ_OLD,
            on_failure=Stage.ROLLBACK_TO_NORMAL,
        ),
        *before_writes,
        StageRow(
            stage=Stage.WRITE_BOTH_READ_OLD,
            writes=Side.UNION,
            reads=Side.OLD,
            in_use=(Side.OLD, Side.UNION),
            drain=Drain.SOURCES,
            work=Work.STREAM,
            next=Stage.WRITE_BOTH_READ_NEW,
            on_failure=Stage.ROLLBACK_TO_NORMAL,
        ),
        StageRow(
            stage=Stage.WRITE_BOTH_READ_NEW,
            writes=Side.UNION,
            reads=Side.NEW,
            in_use=(Side.OLD, Side.UNION, Side.NEW),
            next=last,
        ),
        StageRow(
            stage=last,
            writes=Side.NEW,
            reads=Side.NEW,
            in_use=(Side.UNION, Side.NEW),
            next=Stage.CLEANUP,
        ),
        StageRow(
            stage=Stage.CLEANUP,
            writes=Side.NEW,
            reads=Side.NEW,
            in_use=(Side.NEW,),
            drain=Drain.WORKERS,
            work=Work.CLEANUP,
            next=None,
        ),
        _ROLLBACK,
    )


#: Of a kind where nobody comes or goes.
RANGE_MOVEMENT = range_movement(Stage.PREPARED, Stage.NEW_ONLY)


class Filling(enum.StrEnum):
    """From whom pending replicas are filled: from those that give the range up, or from a read quorum."""

    GIVERS = "givers"
    QUORUM = "quorum"


class Course(msgspec.Struct, frozen=True):
    """A kind of transitions that move by themselves, each for itself through the stages. What they move is in
    `topology.tablets.stages`. `has_way_back`: reads that have moved may go back to the old replicas."""

    name: str
    stages: tuple[StageRow, ...]
    filling: Filling = Filling.GIVERS
    has_way_back: bool = True


class StreamTask(msgspec.Struct, frozen=True, array_like=True):
    """`target` copies the range from all `sources` when `needs_all`, else from any one of them.

    No sources means that too few old replicas are alive to be sure of every acknowledged write.
    """

    target: NodeId
    group: int
    range: Range
    sources: tuple[NodeId, ...]
    needs_all: bool


def side_of(transition: Transition, side: Side) -> tuple[NodeId, ...]:
    """The replicas that `side` names, in ring order of the old side first for the union."""
    if side is Side.OLD:
        return transition.old
    return transition.new if side is Side.NEW else transition.union


def group_at(row: StageRow, transition: Transition) -> tuple[tuple[NodeId, ...], tuple[NodeId, ...]]:
    """(reads, writes) of the transition's range while the stage lasts; writes list the reads first."""
    reads = side_of(transition, row.reads)
    others = tuple(node for node in side_of(transition, row.writes) if node not in reads)
    return reads, reads + others


def replication_at(row: StageRow, transition: Transition) -> Replication:
    """The replication that counts follow in the stage."""
    return transition.replication_after if row.reads is Side.NEW else transition.replication


def problems(rows: Sequence[StageRow]) -> tuple[str, ...]:
    """What is wrong with a stage table, as sentences; empty when it is sound."""
    found = [problem for row in rows for problem in _row_problems(row, rows)]
    names = [row.stage for row in rows]
    if len(set(names)) != len(names):
        found.append("a stage has two rows")
    if not found:
        found.extend(_path_problems(rows))
    return tuple(found)


def _row_problems(row: StageRow, rows: Sequence[StageRow]) -> list[str]:
    found = []
    known = {other.stage for other in rows}
    for target in (row.next, row.on_failure):
        if target is not None and target not in known:
            found.append(f"{row.stage} leads to {target}, which has no row")
    if row.work in STREAMING and row.drain not in (Drain.SOURCES, Drain.ALL):
        found.append(f"{row.stage} streams without draining its sources")
    if row.work in DELETING and row.drain not in (Drain.WORKERS, Drain.ALL):
        found.append(f"{row.stage} wipes ranges that may still be read")
    if row.work is Work.CLEANUP and (Side.OLD in row.in_use or Side.UNION in row.in_use):
        found.append(f"{row.stage} wipes ranges of a group that is still in use")
    if row.work is Work.DISCARD and (Side.NEW in row.in_use or row.reads is not Side.OLD):
        found.append(f"{row.stage} wipes new replicas that may be read")
    if row.work is Work.STREAM and row.writes is not Side.UNION:
        found.append(f"{row.stage} streams to replicas that get no writes")
    if row.work not in (Work.NONE, *DELETING) and row.on_failure is None:
        found.append(f"{row.stage} has work that can fail and no way back")
    if row.writes is not Side.UNION and row.writes is not row.reads:
        found.append(f"{row.stage} reads {row.reads} and writes only {row.writes}")
    if row.next is None and row.writes is Side.UNION:
        found.append(f"{row.stage} ends while both sides are written")
    if row.writes not in row.in_use or row.reads not in row.in_use:
        found.append(f"{row.stage} does not count its own groups as in use")
    return found


def _path_problems(rows: Sequence[StageRow]) -> list[str]:
    table = {row.stage: row for row in rows}
    found = []
    streamed_before = _stages_after_streaming(rows[0], table)
    for row in rows:
        seen = [row.stage]
        at: StageRow | None = row
        while at is not None and at.next is not None:
            if at.next in seen:
                found.append(f"{row.stage} never ends: {' -> '.join([*seen, at.next])}")
                break
            seen.append(at.next)
            at = table[at.next]
        for target in (row.next, row.on_failure):
            if target is not None and not _adjacent(row, table[target]):
                found.append(f"{row.stage} -> {target} changes reads and writes at once")
        if row.reads is Side.NEW and row.stage not in streamed_before:
            found.append(f"{row.stage} reads new replicas that were never filled")
        back = table[row.on_failure] if row.on_failure is not None else None
        if back is not None and row.reads is Side.NEW and back.writes is not Side.UNION:
            found.append(f"{row.stage} goes back in one step although reads have moved")
    return found


def _stages_after_streaming(first: StageRow, table: Mapping[Stage, StageRow]) -> list[Stage]:
    after: list[Stage] = []
    streamed = False
    at: StageRow | None = first
    for _ in table:
        if at is None:
            break
        if streamed:
            after.append(at.stage)
        streamed = streamed or at.work is Work.STREAM
        at = table[at.next] if at.next is not None else None
    return after


def _adjacent(row: StageRow, target: StageRow) -> bool:
    """Only one of reads and writes changes, and what is read next was written before."""
    if row.reads is target.reads:
        return True
    return row.writes is target.writes is Side.UNION


def mermaid(rows: Sequence[StageRow]) -> str:
    """The table as a Mermaid state diagram."""
    lines = ["stateDiagram-v2", f"  [*] --> {rows[0].stage}"]
    for row in rows:
        note = f"reads {row.reads}, writes {row.writes}, drain {row.drain}, work {row.work}"
        lines.append(f"  {row.stage} : {note}")
        lines.append(f"  {row.stage} --> {row.next or '[*]'} : barrier")
        if row.on_failure is not None:
            lines.append(f"  {row.stage} --> {row.on_failure} : cancel or failure")
    return "\n".join(lines) + "\n"
