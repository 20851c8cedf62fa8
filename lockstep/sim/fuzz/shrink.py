"""A shorter script that differs in the same way.

Invariant: every step of shrinking is played on fresh nodes and keeps the sort of the difference; at most
`tries` are played.
"""

from __future__ import annotations

import msgspec

from lockstep.sim.fuzz.altering import Alter, AlterType, Rename
from lockstep.sim.fuzz.changes import Batch, Change
from lockstep.sim.fuzz.looks import Look
from lockstep.sim.fuzz.play import Difference, Script, Step, fresh
from lockstep.sim.fuzz.views import ViewLook


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
