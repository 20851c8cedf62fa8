"""Materialized views: random ones, and what they have to hold.

Invariant: what a view holds is made anew from all that is visible in its table each time it is looked at; its
rows live in tables like others, so every SELECT fits.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from lockstep.sim.fuzz import kinds
from lockstep.sim.fuzz.binding import Say
from lockstep.sim.fuzz.changes import Answer, Moment
from lockstep.sim.fuzz.facts import Content, Mark, Row, Seen, each
from lockstep.sim.fuzz.queries import Look
from lockstep.sim.fuzz.tables import Column, Table, View
from lockstep.sim.runtime.streams import Stream


class ViewLook(msgspec.Struct, frozen=True):
    """A SELECT from the view of this number."""

    number: int
    look: Look

    def text(self, table: Table, say: Say) -> str:
        return self.look.text(table_of(table, self.number), say)

    def apply(self, content: Content, moment: Moment) -> Answer:
        return self.look.apply(_content(content, self.number, moment.now_s), moment)


def table_of(base: Table, number: int) -> Table:
    """The view as a table."""
    view = base.views[number]
    key = [*view.partition, *view.clustering]
    shown = [base.column(name) for name in key]
    shown += [c for c in base.of("regular") if c.name not in key and (not view.shown or c.name in view.shown)]
    columns = tuple(_placed(column, view) for column in shown)
    return Table(view.name, columns, base.users, stamped=base.stamped)


def _placed(column: Column, view: View) -> Column:
    role = "regular"
    if column.name in view.partition:
        role = "partition"
    elif column.name in view.clustering:
        role = "clustering"
    return msgspec.structs.replace(column, role=role, reversed=column.name in view.falling)


def _content(base: Content, number: int, now_s: int) -> Content:
    content = Content(table_of(base.table, number))
    table = content.table
    partition, clustering = table.of("partition"), table.of("clustering")
    for facts, _, rows in each(base, now_s):
        keyed = dict(zip((c.name for c in base.table.of("partition")), facts.key, strict=True))
        names = [column.name for column in base.table.of("clustering")]
        for at, seen in rows:
            values = {**keyed, **dict(zip(names, at, strict=True)), **seen.values}
            key = tuple(values[column.name] for column in partition)
            place = tuple(values[column.name] for column in clustering)
            if None not in key and None not in place:
                _copy(content.row(key, place), seen, table.of("regular"))
    return content


def _copy(row: Row, seen: Seen, columns: Sequence[Column]) -> None:
    row.marks.append(Mark(0, 0, 0))
    for column in columns:
        for path, cell in seen.cells[column.name]:
            row.put(column.name, path, cell)


# ---- drawing


def draw_views(draw: Stream, table: str, columns: Sequence[Column]) -> tuple[View, ...]:
    """Views of a table without counters."""
    of: dict[str, list[Column]] = {role: [c for c in columns if c.role == role] for role in _ROLES}
    keys = [*of["partition"], *of["clustering"]]
    return tuple(_view(draw, f"{table}_w{number}", keys, of) for number in range(draw.choice((1, 1, 2))))


_ROLES = ("partition", "clustering", "static", "regular")


def _view(draw: Stream, name: str, keys: list[Column], of: dict[str, list[Column]]) -> View:
    fit = [c for c in of["regular"] if not c.kind.is_cells and not kinds.has_duration(c.kind)]
    chosen = keys + ([draw.choice(fit)] if fit and draw.random() < 0.7 else [])
    chosen = draw.sample(chosen, len(chosen))
    count = draw.choice((1, 1, 2))
    partition, clustering = chosen[:count], chosen[count:]
    if len(partition) == 1 and clustering and _may_be_empty(partition[0]):
        # A partition key of one column cannot be empty; one of several can.
        partition.append(clustering.pop(0))
    shown: tuple[str, ...] = ()
    if of["static"] or draw.random() < 0.4:
        some = draw.sample(of["regular"], draw.randint(0, len(of["regular"])))
        shown = tuple(sorted({c.name for c in (*chosen, *some)}))
    falling = tuple(c.name for c in clustering if draw.random() < 0.4)
    return View(name, _names(partition), _names(clustering), shown, falling)


def _may_be_empty(column: Column) -> bool:
    return any(not kinds.wire(column.kind, value) for value in column.pool)


def _names(columns: Sequence[Column]) -> tuple[str, ...]:
    return tuple(column.name for column in columns)
