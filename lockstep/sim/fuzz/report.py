"""Runs of random statements: how many, what they found, and the words for it.

Invariant: what is printed repeats the run: a seed and the count of statements say all of it.

A shorter script that differs in the same way.

Invariant: every step of shrinking is played on fresh nodes and keeps the sort of the difference; at most
`tries` are played.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from lockstep.sim.fuzz.altering import Alter, AlterType, Rename, ViewLook
from lockstep.sim.fuzz.changes import Batch, Change
from lockstep.sim.fuzz.door import Door
from lockstep.sim.fuzz.driver import (
    SCRIPT_STATEMENTS,
    Difference,
    Script,
    Step,
    Tally,
    draw_script,
    fresh,
    in_cql,
    play,
)
from lockstep.sim.fuzz.queries import Look
from lockstep.sim.plant import Planted
from lockstep.sim.runner import planted_bugs
from lockstep.values.errors import ConfigurationError


def shrunk(found: Difference, tries: int = 400) -> Difference:
    return _Shrinking(found, tries).run()


class _Shrinking:
    def __init__(self, found: Difference, tries: int) -> None:
        steps = found.script.steps[: found.index + 1]
        self.best = msgspec.structs.replace(found, script=_with(found.script, steps))
        self.tries = tries

    def run(self) -> Difference:
        size = max(1, len(self.best.script.steps) // 2)
        while size:
            if not self._drop(size) and size == 1:
                break
            size = max(1, size // 2)
        self._simplify()
        return self.best

    def _try(self, steps: tuple[Step, ...]) -> bool:
        if self.tries <= 0:
            return False
        self.tries -= 1
        again = fresh(_with(self.best.script, steps))
        if again is None or again.sort != self.best.sort:
            return False
        self.best = msgspec.structs.replace(again, script=_with(again.script, steps[: again.index + 1]))
        return True

    def _drop(self, size: int) -> bool:
        """Leave out runs of steps, from the end on; whether any could go."""
        gone = False
        start = len(self.best.script.steps) - 1 - size
        while start > -size:
            steps = self.best.script.steps
            first = max(start, 0)
            # What comes after a change of the table needs the table that it made.
            window = steps[first : first + size]
            kept = tuple(step for step in window if isinstance(step, Alter | AlterType | Rename))
            left = steps[:first] + kept + steps[first + size :]
            if first + 1 < len(steps) and len(left) < len(steps) and self._try(left):
                gone = True
            start -= size
        return gone

    def _simplify(self) -> None:
        """Leave out parts of the statements."""
        index = 0
        while index < len(self.best.script.steps):
            for simpler in _simpler(self.best.script.steps[index]):
                steps = self.best.script.steps
                if index < len(steps) and self._try((*steps[:index], simpler, *steps[index + 1 :])):
                    break
            else:
                index += 1


def _with(script: Script, steps: tuple[Step, ...]) -> Script:
    return msgspec.structs.replace(script, steps=steps)


def _simpler(step: Step) -> list[Step]:
    change = msgspec.structs.replace
    found: list[Step] = []
    if isinstance(step, Change):
        parts = step.assignments
        if len(parts) > 1:
            found += [change(step, assignments=parts[:i] + parts[i + 1 :]) for i in range(len(parts))]
        if step.ttl_s is not None:
            found.append(change(step, ttl_s=None))
        if step.way:
            found.append(change(step, way=0))
    elif isinstance(step, Batch):
        parts_of = step.changes
        if step.way:
            found.append(change(step, way=0))
        if len(parts_of) > 1:
            found += [change(step, changes=parts_of[:i] + parts_of[i + 1 :]) for i in range(len(parts_of))]
    elif isinstance(step, ViewLook):
        return [change(step, look=look) for look in _simpler(step.look)]
    elif isinstance(step, Look):
        plainer: list[dict[str, object]] = [{"limit": 0}, {"per_partition": 0}, {"page_rows": 0}, {"way": 0}]
        plainer += [
            {"backward": False, "order": 0},
            {"backward": False},
            {"group": 0},
            {"selectors": step.selectors[:1]},
        ]
        for fields in plainer:
            if any(getattr(step, name) != value for name, value in fields.items()):
                found.append(change(step, **fields))
        found += [change(step, where=step.where[:i] + step.where[i + 1 :]) for i in range(len(step.where))]
    return found


#: With faults a script is shorter, for an unknown outcome ends it.
_FAULTY_STATEMENTS: Final = 150


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What to run: `nodes` above one strikes them with faults; with `tablets` tables spread by tablets."""

    seed: int = 1
    statements: int = 10_000
    nodes: int = 1
    shrink: bool = False
    plant: str = ""
    only: int = -1
    tablets: bool = False


class Outcome(msgspec.Struct):
    tally: Tally
    found: list[Difference]


def run(order: Order, told: Callable[[str], None]) -> Outcome:
    """One seed: scripts of new tables on the same nodes until there were that many statements."""
    outcome = Outcome(Tally(), [])
    size = _FAULTY_STATEMENTS if order.nodes > 1 else min(SCRIPT_STATEMENTS, order.statements)
    with _planted(order.plant):
        door = Door(order.seed, order.nodes, tablets=order.tablets)
        try:
            number = max(order.only, 0)
            while outcome.tally.statements < order.statements:
                script = draw_script(order.seed, number, statements=size, nodes=order.nodes)
                script = msgspec.structs.replace(script, tablets=order.tablets)
                difference = play(script, door, outcome.tally)
                if difference is not None:
                    outcome.found.append(difference)
                    told(_text(order, number, difference))
                    # The nodes may be in any state now.
                    door.close()
                    door = Door(order.seed, order.nodes, tablets=order.tablets)
                number += 1
                if order.only >= 0 or (order.plant and outcome.found):
                    break
        finally:
            door.close()
    return outcome


def _text(order: Order, number: int, difference: Difference) -> str:
    again = f"lockstep sim fuzz --seed {order.seed} --table {number} --nodes {order.nodes}"
    again += " --tablets" if order.tablets else ""
    shown = shrunk(difference) if order.shrink else difference
    where = f"seed {order.seed}, table {number}, statement {difference.index}"
    head = f"{where}: {difference.sort}\n  {again} --shrink"
    if order.shrink or difference.index < 0:
        return f"{head}\n{in_cql(shown)}"
    return (
        f"{head}\n  {difference.statement()}\n  expected {difference.expected}\n  answered {difference.told}"
    )


def planted(seed: int, seeds: int, only: str, told: Callable[[str], None]) -> bool:
    """Look for each plant; whether all were found."""
    missed = False
    for name in [only] if only else _plants():
        statements = 0
        for at in range(seed, seed + seeds):
            outcome = run(Order(seed=at, plant=name), lambda text: None)
            statements += outcome.tally.statements
            if outcome.found:
                told(f"{name:20} found after {statements} statements: {outcome.found[0].sort}")
                break
        else:
            missed = True
            told(f"{name:20} NOT FOUND in {statements} statements")
    return not missed


def _planted(name: str) -> contextlib.AbstractContextManager[None]:
    if not name:
        return contextlib.nullcontext()
    plants = _plants()
    if name not in plants:
        raise ConfigurationError(f"there is no planted bug {name}", hint=f"one of {', '.join(plants)}")
    return plants[name].plant()


def _plants() -> Mapping[str, Planted]:
    planted_bugs()
    from lockstep.sim.mutants.statements import PLANTS

    return PLANTS


def text_of(outcome: Outcome, order: Order, elapsed_s: float) -> str:
    tally = outcome.tally
    return (
        f"seed {order.seed}: {tally.statements} statements, {tally.rows} rows in {tally.pages} pages, "
        f"{tally.refused} refused, {tally.unknown} of unknown outcome, {len(outcome.found)} differences, "
        f"{elapsed_s:.0f} s"
    )
