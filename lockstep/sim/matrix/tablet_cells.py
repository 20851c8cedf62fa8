"""The cells of tablets in the crash matrix: what happens to a tablet or its table, at each of its stages,
with who has a part in it killed, shut out for good, or standing still.

Invariant: pure; stages are those of the tables of stages and the phases of resizes, so a new one is in the
matrix by itself. Every combination is a cell; `why_no_tablet` says which do not apply. `may_end` says how a
tablet may end that lost a node in a stage, apart from what the product does.
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from lockstep.metadata.operations import Stage
from lockstep.metadata.tablets import ResizePhase
from lockstep.sim.matrix.cells import Point, Victim
from lockstep.topology.kinds import replication
from lockstep.topology.stages import StageRow, Work
from lockstep.topology.tablets.stages import TABLET_STAGES


class Change(enum.StrEnum):
    MIGRATION = "tablet_migration"
    REBUILD = "tablet_rebuild"
    DRAIN = "tablet_drain"
    UP = "tablet_rf_up"
    DOWN = "tablet_rf_down"
    SPLIT = "tablet_split"
    MERGE = "tablet_merge"


class TabletFault(enum.StrEnum):
    """KILLED: the victim is back after a while. EXCLUDED: it never is; it is shut out, and then removed.
    PAUSED: it stands still for a while, and then goes on."""

    KILLED = "killed"
    EXCLUDED = "excluded"
    PAUSED = "paused"


class Way(enum.StrEnum):
    """Whether the new replicas have a tablet in the end, or the old ones."""

    FORWARD = "forward"
    BACK = "back"


#: What changes the replicas of single tablets, which move by themselves.
LONE: Final = (Change.MIGRATION, Change.REBUILD, Change.DRAIN)
RECOUNTS: Final = (Change.UP, Change.DOWN)
RESIZES: Final = (Change.SPLIT, Change.MERGE)
#: From where the way back leads to a stage of it: there the newcomer is shut out first.
TURNS: Final = {
    Stage.WRITE_BOTH_READ_OLD_FALLBACK_CLEANUP: Stage.WRITE_BOTH_READ_NEW,
    Stage.CLEANUP_TARGET: Stage.WRITE_BOTH_READ_OLD,
    Stage.REVERT_MIGRATION: Stage.WRITE_BOTH_READ_OLD,
}
#: From here on a tablet only goes forward.
_FORWARD_ONLY: Final = (Stage.USE_NEW, Stage.CLEANUP, Stage.END_MIGRATION)
_VICTIMS: Final = (Victim.SOURCE, Victim.TARGET, Victim.COORDINATOR)
_POINTS: Final = (Point.ENTRY, Point.WORK)
_PHASES: Final = (ResizePhase.PREPARING, ResizePhase.CLOSING, ResizePhase.SETTLING)


def rows_of(change: Change) -> tuple[StageRow, ...]:
    """The table of stages that it goes through; none for resizes, which have phases."""
    if change in RECOUNTS:
        return replication.KIND.stages
    return TABLET_STAGES if change in LONE else ()


class TabletCell(msgspec.Struct, frozen=True, order=True):
    """`stage`: of its table, or the phase of a resize."""

    kind: Change
    stage: str
    point: Point
    victim: Victim
    fault: TabletFault

    @property
    def name(self) -> str:
        return "/".join((self.kind, self.stage, self.point, self.victim, self.fault))

    @property
    def row(self) -> StageRow | None:
        return next((row for row in rows_of(self.kind) if row.stage == self.stage), None)

    @property
    def factor(self) -> int:
        """Copies of all data: of five, two may be lost."""
        if self.kind is Change.REBUILD and self.fault is TabletFault.EXCLUDED:
            return 5
        return 4 if self.kind is Change.DOWN else 3

    @property
    def founders(self) -> int:
        """Three vote; there are enough others that one can give a tablet to another one."""
        return 8 if self.factor == 5 else 7

    @property
    def goes_back(self) -> bool:
        """Whether it is on its way back when it is struck."""
        return self.stage in TURNS or self.stage == Stage.ROLLBACK_TO_NORMAL


def every_tablet_cell() -> tuple[TabletCell, ...]:
    """All combinations, those that do not apply too."""
    return tuple(
        TabletCell(change, stage, point, victim, fault)
        for change in Change
        for stage in [row.stage.value for row in rows_of(change)] or [phase.value for phase in _PHASES]
        for point in _POINTS
        for victim in _VICTIMS
        for fault in TabletFault
    )


def why_no_tablet(cell: TabletCell) -> str:
    """Why there is nothing to run; empty when there is."""
    row, change = cell.row, cell.kind
    if cell.point is Point.WORK and (row is None or row.work is Work.NONE):
        return "the stage has no work"
    if cell.victim is Victim.TARGET:
        if change in LONE and cell.goes_back:
            return "the target is shut out already"
        if change is Change.DOWN:
            return "nobody gets anything"
        if change is Change.SPLIT or (change is Change.MERGE and cell.stage != ResizePhase.PREPARING):
            return "nothing of the table is on its way"
    if cell.point is Point.WORK and change is Change.UP and row is not None and row.work is Work.CLEANUP:
        return "nobody gives anything up"
    if (
        cell.point is Point.WORK
        and change is Change.DOWN
        and row is not None
        and row.work is not Work.CLEANUP
    ):
        return "nobody gets anything"
    if cell.point is Point.WORK and change in LONE and cell.stage == Stage.CLEANUP_TARGET:
        return "who is shut out drops nothing"
    if cell.point is Point.WORK and change is Change.REBUILD and cell.stage == Stage.CLEANUP:
        return "who is dead drops nothing"
    return ""


def may_end(stage: Stage, lost: Victim) -> tuple[Way, ...]:
    """How a tablet that moves by itself may end when its source, or its target, is shut out for good in a
    stage: a newcomer that is gone is given up as long as that is possible, and never afterwards; without
    the one that gives it up it is filled by the others, or stays with them."""
    if stage in TURNS:
        return (Way.BACK,)
    if stage in _FORWARD_ONLY:
        return (Way.FORWARD,)
    if lost is Victim.TARGET:
        return (Way.BACK,)
    return (Way.FORWARD,) if stage is Stage.WRITE_BOTH_READ_NEW else (Way.FORWARD, Way.BACK)
