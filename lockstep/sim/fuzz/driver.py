"""Scripts of random statements, played on nodes and on the model side by side.

Invariant: one (seed, table number) is one script; a script creates what it uses, and the first answer that
differs ends it.

Random changes of tables and types.

Invariant: as in `draws`, nothing depends on an answer; what is drawn afterwards is of the changed table.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any, Final, Protocol, TypeAlias

import msgspec

from lockstep.sim.fuzz import changes, kinds
from lockstep.sim.fuzz.altering import Alter, AlterType, Rename, ViewLook, draw_views, table_of
from lockstep.sim.fuzz.changes import Answer, Batch, Change, Moment, Truncate, Wrong
from lockstep.sim.fuzz.door import NOT_DONE, UNKNOWN, Door, Told
from lockstep.sim.fuzz.facts import Content
from lockstep.sim.fuzz.generators import Changes
from lockstep.sim.fuzz.kinds import BESIDE, MESSAGE, Binder, Said, ahead_s, shown
from lockstep.sim.fuzz.queries import Look
from lockstep.sim.fuzz.query_generators import Looks
from lockstep.sim.fuzz.tables import Column, Table, draw_added, draw_table, star
from lockstep.sim.runtime.streams import Stream, stream

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


#: Statements of one table: enough that its few rows are written many times over.
SCRIPT_STATEMENTS: Final = 400


class Wait(msgspec.Struct, frozen=True):
    """Time passes, and things expire."""

    seconds: int


class Fault(msgspec.Struct, frozen=True):
    """Something happens to a node: kill, cut, mend. Answers do not change."""

    what: str
    node: int = 1


Statement: TypeAlias = Change | Batch | Truncate | Wrong | Alter | AlterType | Rename | Look | ViewLook
Step: TypeAlias = Statement | Wait | Fault


class Script(msgspec.Struct, frozen=True):
    table: Table
    steps: tuple[Step, ...]
    nodes: int = 1
    tablets: bool = False

    def with_tables(self) -> Iterator[tuple[Table, Step]]:
        """Each step with the table as it is then."""
        table = self.table
        for step in self.steps:
            yield table, step
            if isinstance(step, Alter | AlterType | Rename):
                table = step.changed(table)


class Difference(msgspec.Struct, frozen=True):
    """The answer of step `index` was not the expected one."""

    script: Script
    index: int
    expected: str
    told: str
    #: Which sort of difference it is: shrinking keeps to it.
    sort: str

    def statement(self) -> str:
        """The one that was answered so."""
        table, step = list(self.script.with_tables())[self.index]
        assert not isinstance(step, Wait | Fault)
        return step.text(table, shown)


class Executor(Protocol):
    """What runs statements: simulated nodes, or a driver's session."""

    def now_s(self) -> int: ...
    def settle(self) -> None: ...
    def wait(self, seconds: int) -> None: ...
    def rest(self) -> None: ...
    def run(self, text: str) -> Told: ...
    def ask(self, said: Said, page_rows: int = 0) -> Told: ...
    def strike(self, what: str, node: int) -> None: ...


class Tally(msgspec.Struct):
    """What was played."""

    statements: int = 0
    rows: int = 0
    refused: int = 0
    unknown: int = 0
    pages: int = 0


def draw_script(seed: int, number: int, *, statements: int = SCRIPT_STATEMENTS, nodes: int = 1) -> Script:
    draw = stream(seed, f"fuzz/{number}")
    table = draw_table(draw, number)
    if not table.counters and draw.random() < 0.25:
        table = msgspec.structs.replace(table, views=draw_views(draw, table.name, table.columns))
    changes = Changes(draw, table)
    alterings = Alterings(draw, changes)
    looks = Looks(draw, table, changes)
    steps: list[Step] = []
    while len(steps) < statements:
        chance = draw.random()
        if chance < 0.03:
            steps.append(Wait(draw.randint(1, 6)))
        elif nodes > 1 and chance < 0.06:
            steps.append(Fault(draw.choice(("kill", "pause", "cut", "mend")), draw.randint(2, nodes)))
        elif chance < 0.07:
            steps.append(alterings.next())
            looks.table = changes.table
        elif changes.table.views and chance < (0.16 if nodes == 1 else 0.1):
            steps.append(_view_look(draw, changes.table))
        else:
            steps.append(looks.next() if chance > 0.55 else changes.next())
    return Script(table, tuple(steps), nodes)


def _view_look(draw: Stream, table: Table) -> ViewLook:
    number = draw.randrange(len(table.views))
    view = table_of(table, number)
    return ViewLook(number, Looks(draw, view, Changes(draw, view)).next())


def play(script: Script, door: Executor, tally: Tally | None = None) -> Difference | None:
    """None when all answers are as expected. A statement whose outcome is unknown ends the script."""
    tally = tally or Tally()
    table = script.table
    if script.nodes > 1:
        door.strike("mend", script.nodes)
    for text in table.statements():
        told = door.run(text)
        if told.error:
            return Difference(script, -1, f"{text} succeeds", told.message, "schema")
    if table.indexes:
        door.rest()
    content, moment = Content(table), Moment(0)
    for index, step in enumerate(script.steps):
        if isinstance(step, Wait):
            door.wait(step.seconds)
            continue
        if isinstance(step, Fault):
            door.strike(step.what, step.node)
            continue
        if isinstance(step, ViewLook):
            # With a node down a view may be behind.
            if script.nodes > 1:
                door.strike("mend", script.nodes)
            door.rest()
        door.settle()
        clock_s = door.now_s()
        moment.now_s = clock_s + ahead_s(_way(step))
        told = door.ask(said(step, content.table, moment.now_s), _page_rows(step))
        tally.statements += 1
        tally.pages += told.pages
        tally.rows += len(told.rows or ())
        if script.nodes > 1 and told.error in (*UNKNOWN, *NOT_DONE):
            tally.unknown += 1
            if told.error in NOT_DONE or isinstance(step, Look | ViewLook):
                continue
            return None
        tally.refused += bool(told.error)
        if told.pages > 1 and door.now_s() != clock_s:
            continue  # Waited for a node between pages: later ones show less of what expires.
        answer = step.apply(content, moment)
        sort = difference(content.table, step, answer, told)
        if sort:
            return Difference(script, index, _shown(answer), _told(told), sort)
    return None


def said(step: Statement, table: Table, now_s: int = 0) -> Said:
    """As it is sent, in that second."""
    if isinstance(step, Wrong):
        return Said(step.statement, step.values)
    way = _way(step)
    stamp = step.stamp if isinstance(step, Change | Batch) and way & BESIDE else None
    binder = Binder(way)
    if isinstance(step, Batch) and way & MESSAGE:
        sort = changes.sort_of(step, table)
        parts = tuple(said(change, table) for change in step.changes)
        return msgspec.structs.replace(binder.said(sort, step.stamp, now_s), batched=parts)
    return binder.said(step.text(table, binder), stamp, now_s)


def _way(step: Statement) -> int:
    if isinstance(step, ViewLook):
        return step.look.way
    return 0 if isinstance(step, Truncate | Alter | AlterType | Rename | Wrong) else step.way


def _page_rows(step: Statement) -> int:
    look = step.look if isinstance(step, ViewLook) else step
    return look.page_rows if isinstance(look, Look) else 0


def difference(table: Table, step: Statement, answer: Answer, told: Told) -> str:
    """Which sort of difference there is; empty when there is none."""
    if answer.error != told.error:
        return f"error {answer.error:#06x} is {told.error:#06x}"
    if answer.error:
        return ""
    if answer.applied is not None:
        applied = bool(told.rows) and told.rows is not None and told.rows[0][0]
        if applied != answer.applied or not told.rows:
            return "applied"
        return "" if plain([row[1:] for row in told.rows]) == plain(answer.rows) else "rows of conditions"
    if (answer.rows is None) != (told.rows is None):
        return "kind"
    if answer.rows is None or told.rows is None:
        return ""
    look = step.look if isinstance(step, ViewLook) else step
    if isinstance(look, Look) and look.as_json:
        asked = table_of(table, step.number) if isinstance(step, ViewLook) else table
        wanted = [_json_row(asked, row) for row in answer.rows]
        return "" if [json.loads(row[0]) for row in told.rows] == wanted else "json"
    if plain(answer.rows) == plain(told.rows):
        return ""
    if sorted(map(repr, plain(answer.rows))) == sorted(map(repr, plain(told.rows))):
        return "order"
    return "rows"


def plain(value: Any) -> Any:
    """Equal exactly for what is the same."""
    if isinstance(value, list | tuple):
        return tuple(plain(part) for part in value)
    if isinstance(value, float):
        return struct.pack(">d", value)
    return tuple(value.as_tuple()) if isinstance(value, Decimal) else value


def _json_row(table: Table, row: Sequence[Any]) -> dict[str, Any]:
    names = star(table)
    return {
        name: kinds.plain_json(table.column(name).kind, value) for name, value in zip(names, row, strict=True)
    }


def _shown(answer: Answer) -> str:
    if answer.error:
        return f"error {answer.error:#06x}"
    if answer.applied is not None:
        return f"applied: {answer.applied}, {_rows(answer.rows or ())}"
    return "no rows" if answer.rows is None else _rows(answer.rows)


def _told(told: Told) -> str:
    if told.error:
        return f"error {told.error:#06x}: {told.message}"
    return "no rows" if told.rows is None else _rows(told.rows)


def _rows(rows: Sequence[Sequence[Any]]) -> str:
    return f"{len(rows)} rows" + "".join(f"\n    {plain(row)}" for row in rows[:20])


def in_cql(found: Difference) -> str:
    """The script up to the difference, as statements and comments."""
    lines = [f"{text};" for text in found.script.table.statements()]
    for index, (table, step) in enumerate(list(found.script.with_tables())[: found.index + 1]):
        if isinstance(step, Wait):
            lines.append(f"-- wait {step.seconds} s")
        elif isinstance(step, Fault):
            lines.append(f"-- {step.what} n{step.node}")
        else:
            page = f"  -- pages of {_page_rows(step)}" if _page_rows(step) else ""
            ending = "  -- differs" if index == found.index else ""
            lines.append(f"{step.text(table, shown)};{_bound(step, table)}{page}{ending}")
    return "\n".join([*lines, f"-- expected {found.expected}", f"-- answered {found.told}"])


def _bound(step: Statement, table: Table) -> str:
    sent = said(step, table)
    marks = [f"timestamp {sent.stamp}"] if sent.stamp is not None else []
    marks += [f"{ahead_s(_way(step))} s ahead"] if sent.now_s is not None else []
    marks += ["version 5"] if sent.version == 5 else []
    if sent.batched:
        marks.append(f"message of {', '.join(_how(one) for one in sent.batched)}")
    elif sent.values or sent.prepared:
        marks.append(_how(sent))
    return f"  -- {'; '.join(marks)}" if marks else ""


def _how(sent: Said) -> str:
    named = " named" if sent.named else ""
    return f"{'prepared' if sent.prepared else 'text'} with {len(sent.values)}{named} values"


def fresh(script: Script) -> Difference | None:
    """Play it on nodes of its own."""
    with Door(1, script.nodes, tablets=script.tablets) as door:
        return play(script, door)
