"""The cells of the crash matrix, and which of them cannot be, with the reason.

Invariant: pure; the rows are those of the stage tables, so a new kind or stage is in the matrix by itself.
Every combination of kind, stage, point, victim and fault is a cell; `why_not` says which do not apply.
"""

from __future__ import annotations

import enum
import fnmatch

import msgspec

from lockstep.metadata.operations import OperationKind, Stage
from lockstep.topology.stages import TABLES, StageRow, Work

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


class Kind(msgspec.Struct, frozen=True):
    """An operation as operators begin it. `table` None: it is one entry without stages."""

    name: str
    table: OperationKind | None
    #: Its subject is dead when it begins.
    dead: bool = False
    #: The subject gives everything, or gets everything: nobody else is the source, or the target.
    gives: bool = False
    gets: bool = False
    #: No node is its subject.
    nobodys: bool = False
    #: Somebody gets ranges; somebody who stays gives some up.
    fills: bool = True
    sheds: bool = True
    #: It can be taken back at any stage: it walks back over the steps that it has done.
    walks: bool = False
    #: How many nodes the cluster begins with, and copies of all data that are there before.
    founders: int = 4
    factor: int = 3


_KNOWN = (
    Kind("bootstrap", OperationKind.BOOTSTRAP, gets=True),
    Kind("decommission", OperationKind.DECOMMISSION, gives=True, sheds=False),
    Kind("move", OperationKind.MOVE),
    Kind("replace_same_address", OperationKind.REPLACE, dead=True, gets=True, sheds=False),
    Kind("replace_new_address", OperationKind.REPLACE, dead=True, gets=True, sheds=False),
    Kind("remove", OperationKind.REMOVE, dead=True, sheds=False),
    Kind("rebuild", OperationKind.REBUILD, gets=True),
    Kind("force_remove", None, dead=True),
    Kind("replication_up", OperationKind.REPLICATION, nobodys=True, sheds=False, walks=True, founders=6),
    Kind(
        "replication_down",
        OperationKind.REPLICATION,
        nobodys=True,
        fills=False,
        walks=True,
        founders=6,
        factor=5,
    ),
)
_TABLED = {kind.table: None for kind in _KNOWN}
#: By name; a kind that only the stage tables know is here too.
KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        *_KNOWN,
        *(Kind(table.value, table, nobodys=True) for table in TABLES if table not in _TABLED),
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
        return next((row for row in rows_of(KINDS[self.kind]) if row.stage == self.stage), None)

    @property
    def factor(self) -> int:
        """Copies of all data: with one node dead already, a second one may be lost only of five."""
        return 5 if self._two_lost else KINDS[self.kind].factor

    @property
    def founders(self) -> int:
        return 6 if self._two_lost else KINDS[self.kind].founders

    @property
    def _two_lost(self) -> bool:
        return KINDS[self.kind].dead and self.fault is Fault.LOST

    @property
    def goes_back(self) -> bool:
        """Whether the operation is cancelled first, so that there is something to strike at."""
        return self.stage == Stage.ROLLBACK_TO_NORMAL


def rows_of(kind: Kind) -> tuple[StageRow, ...]:
    return TABLES[kind.table] if kind.table is not None else ()


def every_cell() -> tuple[Cell, ...]:
    """All combinations, those that do not apply too."""
    cells = []
    for kind in KINDS.values():
        for stage in [row.stage.value for row in rows_of(kind)] or [AT_ONCE]:
            for point in Point:
                cells.append(Cell(kind.name, stage, point, Victim.NOBODY, Fault.CANCEL))
                cells.extend(
                    Cell(kind.name, stage, point, victim, fault)
                    for victim in Victim
                    for fault in Fault
                    if victim is not Victim.NOBODY and fault is not Fault.CANCEL
                )
    return tuple(cells)


def why_not(cell: Cell) -> str:
    """Why there is nothing to run; empty when there is."""
    kind, row = KINDS[cell.kind], cell.row
    if cell.fault is Fault.CANCEL and (row is None or cell.goes_back):
        return "it is going back already" if row is not None else "one entry cannot be taken back"
    if row is None and cell.point is not Point.ENTRY:
        return "one entry has no barrier, no work and no next step"
    return (_point(kind, row, cell.point) if row is not None else "") or _victim(kind, row, cell.victim)


def _point(kind: Kind, row: StageRow, point: Point) -> str:
    if point is not Point.WORK:
        return ""
    if row.work is Work.NONE:
        return "the stage has no work"
    if row.work is Work.CLEANUP and not kind.sheds:
        return "nobody who stays gives anything up"
    if row.work in (Work.WIPE, Work.STREAM, Work.DISCARD) and not kind.fills:
        return "nobody gets anything"
    return ""


def _victim(kind: Kind, row: StageRow | None, victim: Victim) -> str:
    if victim is Victim.SUBJECT and kind.nobodys:
        return "it has no subject"
    if victim is Victim.SUBJECT and kind.dead and not kind.gets:
        return "the subject is dead already"
    if victim is Victim.SOURCE and (kind.gives or row is None):
        return "the subject is the source" if kind.gives else "nothing is streamed"
    if victim in (Victim.SOURCE, Victim.TARGET) and not kind.fills:
        return "nobody gets anything"
    if victim is Victim.TARGET and kind.gets:
        return "the subject is the target"
    return ""


def chosen(pattern: str) -> tuple[Cell, ...]:
    """Cells whose name is, or begins with the parts of, `pattern`; parts may have wildcards."""
    if not pattern:
        return every_cell()
    wanted = pattern.split("/")
    return tuple(
        cell
        for cell in every_cell()
        if len(wanted) <= 5
        and all(fnmatch.fnmatchcase(part, w) for part, w in zip(cell.name.split("/"), wanted, strict=False))
    )
