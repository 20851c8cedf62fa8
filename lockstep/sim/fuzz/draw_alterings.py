"""Random changes of tables and types.

Invariant: as in `draws`, nothing depends on an answer; what is drawn afterwards is of the changed table.
"""

from __future__ import annotations

from typing import Final

from lockstep.sim.fuzz import kinds
from lockstep.sim.fuzz.altering import Alter, AlterType, Rename
from lockstep.sim.fuzz.draws import Changes
from lockstep.sim.fuzz.tables import Column, draw_added
from lockstep.sim.streams import Stream

#: Names that columns of a key get: more than it has columns.
_KEYS: Final = ("a0", "a1", "a2", "k0", "k1", "k2", "z0", "z1", "z2")


class Alterings:
    """Draws for the table of `changes`."""

    def __init__(self, draw: Stream, changes: Changes) -> None:
        self.draw, self.changes = draw, changes
        self._added = 0
        self._gone: list[Column] = []

    def next(self) -> Alter | AlterType | Rename:
        """The table is another one afterwards."""
        table = self.changes.table
        self._added += 1
        chance = self.draw.random()
        step: Alter | AlterType | Rename
        if chance < 0.2:
            step = self._rename()
        else:
            step = (self._alter_type() if chance < 0.4 else None) or self._alter_columns()
        self.changes.table = step.changed(table)
        if isinstance(step, AlterType):
            self._gone = [step.column(column) for column in self._gone]
        return step

    def _alter_columns(self) -> Alter:
        table = self.changes.table
        kept = table.of("regular", "static")
        several = len(table.of("regular")) > 1
        fit = [
            column
            for column in kept
            if column.name not in table.indexed
            and (several or column.role == "static")
            and not (column.kind.is_cells and column.kind.name == "udt")
        ]
        if fit and not table.views and self.draw.random() < 0.5:
            gone = self.draw.choice(fit)
            self._gone.append(gone)
            # Nothing that was written is newer.
            stamp = self.changes.newest if table.stamped else None
            return Alter(drop=gone.name, stamp=stamp)
        if self._gone and not table.counters and self.draw.random() < 0.6:
            return Alter(self._gone.pop())
        role = "static" if table.of("clustering") and self.draw.random() < 0.2 else "regular"
        return Alter(draw_added(self.draw, table, f"x{self._added}", role))

    def _rename(self) -> Rename:
        table = self.changes.table
        column = self.draw.choice(table.of("partition", "clustering"))
        # Some go back to what they were called.
        names = {column.name for column in table.columns}
        return Rename(column.name, self.draw.choice([name for name in _KEYS if name not in names]))

    def _alter_type(self) -> AlterType | None:
        table = self.changes.table
        if not table.users:
            return None
        user = self.draw.choice(table.users)
        if self.draw.random() < 0.4:
            return AlterType(user.user, f"g{self._added}")
        keyed = any(kinds.has_user(column.kind, user.user) for column in table.of("partition"))
        viewed = {name for view in table.views for name in view.partition}
        keyed = keyed or any(kinds.has_user(table.column(name).kind, user.user) for name in viewed)
        if keyed or len(user.parts) > 4:
            return None
        part = kinds.draw_scalar(self.draw, key=True)
        pool = (None, *(kinds.draw_value(self.draw, part) for _ in range(3)))
        return AlterType(user.user, f"f{self._added + 3}", part, pool)
