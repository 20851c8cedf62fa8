"""The stages of a tablet that goes from one replica to another, as a table that three kinds share.

Invariant: until `use_new` has begun a tablet may come back to its old replicas, from then on it only goes
forward. Reads that have moved go back over a stage in which both sides are still written. Every row is proved
by `topology.stages.problems`, and each change of a tablet's replicas against the version before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from lockstep.metadata.operations import Stage
from lockstep.metadata.transitions import Transition
from lockstep.topology.stages import DELETING, Course, Drain, Filling, Side, StageRow, Work

#: Forward, in order, then the way back.
TABLET_STAGES: Final = (
    StageRow(
        stage=Stage.ALLOW_WRITE_BOTH_READ_OLD,
        writes=Side.OLD,
        reads=Side.OLD,
        in_use=(Side.OLD, Side.UNION),
        work=Work.WIPE,
        next=Stage.WRITE_BOTH_READ_OLD,
        on_failure=Stage.CLEANUP_TARGET,
    ),
    StageRow(
        stage=Stage.WRITE_BOTH_READ_OLD,
        writes=Side.UNION,
        reads=Side.OLD,
        in_use=(Side.OLD, Side.UNION),
        next=Stage.STREAMING,
        on_failure=Stage.CLEANUP_TARGET,
    ),
    StageRow(
        stage=Stage.STREAMING,
        writes=Side.UNION,
        reads=Side.OLD,
        in_use=(Side.OLD, Side.UNION),
        drain=Drain.SOURCES,
        work=Work.STREAM,
        next=Stage.WRITE_BOTH_READ_NEW,
        on_failure=Stage.CLEANUP_TARGET,
    ),
    StageRow(
        stage=Stage.WRITE_BOTH_READ_NEW,
        writes=Side.UNION,
        reads=Side.NEW,
        in_use=(Side.OLD, Side.UNION, Side.NEW),
        next=Stage.USE_NEW,
        on_failure=Stage.WRITE_BOTH_READ_OLD_FALLBACK_CLEANUP,
    ),
    StageRow(
        stage=Stage.USE_NEW,
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
        next=Stage.END_MIGRATION,
    ),
    StageRow(
        stage=Stage.END_MIGRATION,
        writes=Side.NEW,
        reads=Side.NEW,
        in_use=(Side.NEW,),
        next=None,
    ),
    StageRow(
        stage=Stage.WRITE_BOTH_READ_OLD_FALLBACK_CLEANUP,
        writes=Side.UNION,
        reads=Side.OLD,
        in_use=(Side.OLD, Side.UNION, Side.NEW),
        next=Stage.CLEANUP_TARGET,
        pending_votes=True,
    ),
    StageRow(
        stage=Stage.CLEANUP_TARGET,
        writes=Side.OLD,
        reads=Side.OLD,
        in_use=(Side.OLD, Side.UNION),
        drain=Drain.WORKERS,
        work=Work.DISCARD,
        next=Stage.REVERT_MIGRATION,
        pending_votes=True,
    ),
    StageRow(
        stage=Stage.REVERT_MIGRATION,
        writes=Side.OLD,
        reads=Side.OLD,
        in_use=(Side.OLD,),
        next=None,
    ),
)

#: A replica goes to another node, which is filled by the one that gives it up.
MIGRATION: Final = Course("migration", TABLET_STAGES)
#: A replica goes to another shard of its node: the nodes stay, so there is no other side to go back to.
INTRANODE: Final = Course("intranode", TABLET_STAGES, has_way_back=False)
#: A replica that is gone is made anew elsewhere, from the others.
REBUILD: Final = Course("rebuild", TABLET_STAGES, Filling.QUORUM)


#: The kinds of transitions that move by themselves, by name; what moves in operations has the stages of its
#: operation's kind. Who drives transitions looks their stages up here, and knows no kind by name.
COURSES: Mapping[str, Course] = MappingProxyType(
    {course.name: course for course in (MIGRATION, INTRANODE, REBUILD)}
)


def goes_back(one: Transition) -> bool:
    """Whether a transition that moves by itself ends where it began: old replicas are read, and what is left
    to do is to drop what came."""
    if one.position is None:
        return False
    stages = COURSES[one.position.kind].stages
    row = next(row for row in stages if row.stage is one.position.stage)
    return row.reads is Side.OLD and (row.work in DELETING or row.on_failure is None)
