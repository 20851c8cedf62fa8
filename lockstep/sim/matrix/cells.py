"""The cells of the crash matrix, and which of them cannot be, with the reason.

Invariant: pure; the rows are those of the stage tables, so a new kind or stage is in the matrix by itself.
Every combination of kind, stage, point, victim and fault is a cell; `why_not` says which do not apply.
"""

from __future__ import annotations

import enum
import fnmatch

import msgspec

from lockstep.metadata.operations import Stage
from lockstep.topology.kind import Drill, Kind
from lockstep.topology.kinds.registry import KINDS as ALL_KINDS
from lockstep.topology.stages import StageRow, Work

#: The one step of an operation that is a single entry.
AT_ONCE = "at_once"


class Point(enum.StrEnum):
    """Where in a stage: its entry is applied somewhere for the first time, its barrier waits, its work is
    half done, the entry that leaves it is about to be proposed."""

    ENTRY = "entry"
    BARRIER = "barrier"
    WORK = "work"
    LEAVE = "leave"


class Victim(enum.StrEnum):
    COORDINATOR = "coordinator"
    SUBJECT = "subject"
    SOURCE = "source"
    TARGET = "target"
    NOBODY = "nobody"


class Fault(enum.StrEnum):
    """CRASH: the victim is back after a while. LOST: it never is, and its disk is gone. PARTITION: nobody
    hears it for a while. CANCEL: an operator takes the operation back; that has no victim."""

    CRASH = "crash"
    LOST = "lost"
    PARTITION = "partition"
    CANCEL = "cancel"


class Subject(msgspec.Struct, frozen=True):
    """What a row of the matrix is about: a drill of a kind, or an operation that is one entry (no kind)."""

    drill: Drill
    kind: Kind | None

    @property
    def rows(self) -> tuple[StageRow, ...]:
        return self.kind.stages if self.kind is not None else ()


#: By name.
KINDS: dict[str, Subject] = {
    subject.drill.name: subject
    for subject in (
        *(Subject(drill, kind) for kind in ALL_KINDS if not kind.is_global for drill in kind.drills),
        Subject(Drill("force_remove", dead=True), None),
        *(Subject(drill, kind) for kind in ALL_KINDS if kind.is_global for drill in kind.drills),
    )
}


class Cell(msgspec.Struct, frozen=True, order=True):
    kind: str
    stage: str
    point: Point
    victim: Victim
    fault: Fault

    @property
    def name(self) -> str:
        return "/".join((self.kind, self.stage, self.point, self.victim, self.fault))

    @property
    def row(self) -> StageRow | None:
        return next((row for row in KINDS[self.kind].rows if row.stage == self.stage), None)

    @property
    def factor(self) -> int:
        """Copies of all data: with one node dead already, a second one may be lost only of five."""
        return 5 if self._two_lost else KINDS[self.kind].drill.factor

    @property
    def founders(self) -> int:
        return 6 if self._two_lost else KINDS[self.kind].drill.founders

    @property
    def _two_lost(self) -> bool:
        return KINDS[self.kind].drill.dead and self.fault is Fault.LOST

    @property
    def goes_back(self) -> bool:
        """Whether the operation is cancelled first, so that there is something to strike at."""
        return self.stage == Stage.ROLLBACK_TO_NORMAL


def every_cell() -> tuple[Cell, ...]:
    """All combinations, those that do not apply too."""
    cells = []
    for name, subject in KINDS.items():
        for stage in [row.stage.value for row in subject.rows] or [AT_ONCE]:
            for point in Point:
                cells.append(Cell(name, stage, point, Victim.NOBODY, Fault.CANCEL))
                cells.extend(
                    Cell(name, stage, point, victim, fault)
                    for victim in Victim
                    for fault in Fault
                    if victim is not Victim.NOBODY and fault is not Fault.CANCEL
                )
    return tuple(cells)


def why_not(cell: Cell) -> str:
    """Why there is nothing to run; empty when there is."""
    drill, row = KINDS[cell.kind].drill, cell.row
    if cell.fault is Fault.CANCEL and (row is None or cell.goes_back):
        return "it is going back already" if row is not None else "one entry cannot be taken back"
    if row is None and cell.point is not Point.ENTRY:
        return "one entry has no barrier, no work and no next step"
    return (_point(drill, row, cell.point) if row is not None else "") or _victim(drill, row, cell.victim)


def _point(drill: Drill, row: StageRow, point: Point) -> str:
    if point is not Point.WORK:
        return ""
    if row.work is Work.NONE:
        return "the stage has no work"
    if row.work is Work.CLEANUP and not drill.sheds:
        return "nobody who stays gives anything up"
    if row.work in (Work.WIPE, Work.STREAM, Work.DISCARD) and not drill.fills:
        return "nobody gets anything"
    return ""


def _victim(drill: Drill, row: StageRow | None, victim: Victim) -> str:
    if victim is Victim.SUBJECT and drill.nobodys:
        return "it has no subject"
    if victim is Victim.SUBJECT and drill.dead and not drill.gets:
        return "the subject is dead already"
    if victim is Victim.SOURCE and (drill.gives or row is None):
        return "the subject is the source" if drill.gives else "nothing is streamed"
    if victim in (Victim.SOURCE, Victim.TARGET) and not drill.fills:
        return "nobody gets anything"
    if victim is Victim.TARGET and drill.gets:
        return "the subject is the target"
    return ""


def matches(name: str, pattern: str) -> bool:
    """Whether the name of a cell is, or begins with the parts of, `pattern`; parts may have wildcards."""
    parts, wanted = name.split("/"), pattern.split("/") if pattern else []
    return len(wanted) <= len(parts) and all(
        fnmatch.fnmatchcase(part, one) for part, one in zip(parts, wanted, strict=False)
    )


def chosen(pattern: str) -> tuple[Cell, ...]:
    """The cells that `pattern` names; all without it."""
    return tuple(cell for cell in every_cell() if matches(cell.name, pattern))
