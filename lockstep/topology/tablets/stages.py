"""The stages of a tablet that goes from one replica to another, as a table that three kinds share.

Invariant: until `use_new` has begun a tablet may come back to its old replicas, from then on it only goes
forward. Reads that have moved go back over a stage in which both sides are still written. Every row is proved
by `topology.stages.problems`, and each change of a tablet's replicas against the version before it.
"""

from __future__ import annotations

from typing import Final

from lockstep.metadata.operations import Stage
from lockstep.topology.stages import Course, Drain, Filling, Side, StageRow, Work

#: Forward, in order, then the way back.
TABLET_STAGES: Final = (
    StageRow(
        stage=Stage.ALLOW_WRITE_BOTH_READ_OLD,
        writes=Side.OLD,
        reads=Side.OLD,
        in_use=(Side.OLD, Side.UNION),
        drain=Drain.NONE,
        work=Work.WIPE,
        next=Stage.WRITE_BOTH_READ_OLD,
        on_failure=Stage.CLEANUP_TARGET,
    ),
    StageRow(
        stage=Stage.WRITE_BOTH_READ_OLD,
        writes=Side.UNION,
        reads=Side.OLD,
        in_use=(Side.OLD, Side.UNION),
        drain=Drain.NONE,
        work=Work.NONE,
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
        drain=Drain.NONE,
        work=Work.NONE,
        next=Stage.USE_NEW,
        on_failure=Stage.WRITE_BOTH_READ_OLD_FALLBACK_CLEANUP,
    ),
    StageRow(
        stage=Stage.USE_NEW,
        writes=Side.NEW,
        reads=Side.NEW,
        in_use=(Side.UNION, Side.NEW),
        drain=Drain.NONE,
        work=Work.NONE,
        next=Stage.CLEANUP,
        on_failure=None,
    ),
    StageRow(
        stage=Stage.CLEANUP,
        writes=Side.NEW,
        reads=Side.NEW,
        in_use=(Side.NEW,),
        drain=Drain.WORKERS,
        work=Work.CLEANUP,
        next=Stage.END_MIGRATION,
        on_failure=None,
    ),
    StageRow(
        stage=Stage.END_MIGRATION,
        writes=Side.NEW,
        reads=Side.NEW,
        in_use=(Side.NEW,),
        drain=Drain.NONE,
        work=Work.NONE,
        next=None,
        on_failure=None,
    ),
    StageRow(
        stage=Stage.WRITE_BOTH_READ_OLD_FALLBACK_CLEANUP,
        writes=Side.UNION,
        reads=Side.OLD,
        in_use=(Side.OLD, Side.UNION, Side.NEW),
        drain=Drain.NONE,
        work=Work.NONE,
        next=Stage.CLEANUP_TARGET,
        on_failure=None,
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
        on_failure=None,
        pending_votes=True,
    ),
    StageRow(
        stage=Stage.REVERT_MIGRATION,
        writes=Side.OLD,
        reads=Side.OLD,
        in_use=(Side.OLD,),
        drain=Drain.NONE,
        work=Work.NONE,
        next=None,
        on_failure=None,
    ),
)

#: Those in which a tablet is on its way back to its old replicas.
WAY_BACK: Final = (
    Stage.WRITE_BOTH_READ_OLD_FALLBACK_CLEANUP,
    Stage.CLEANUP_TARGET,
    Stage.REVERT_MIGRATION,
)
#: A replica goes to another node, which is filled by the one that gives it up.
MIGRATION: Final = Course("migration", TABLET_STAGES)
#: A replica goes to another shard of its node: the nodes stay, so there is no other side to go back to.
INTRANODE: Final = Course("intranode", TABLET_STAGES, has_way_back=False)
#: A replica that is gone is made anew elsewhere, from the others.
REBUILD: Final = Course("rebuild", TABLET_STAGES, Filling.QUORUM)
