"""What is wrong with this node, as its parts report it.

A part that learns of a change calls `report` or `clear`; one that can only be looked at is given to `watch`.

Invariant: at most CONDITIONS_HELD_MAX are held; each is logged once when it begins and once when it ends,
however often it is reported; a report that finds no room is counted and shown as a number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from lockstep.runtime.ports import Clock
from lockstep.values.conditions import (
    CONDITION_DETAIL_BYTES_MAX,
    CONDITION_SUBJECT_BYTES_MAX,
    CONDITIONS,
    CONDITIONS_HELD_MAX,
    CONDITIONS_TOLD_MAX,
    Condition,
    cut_text,
    worst_first,
)


class Conditions:
    def __init__(self, clock: Clock, log: Callable[..., None]) -> None:
        self._clock = clock
        self._log = log
        self._held: dict[tuple[str, str], Condition] = {}
        self._looks: list[Callable[[], None]] = []
        #: Reports that found no room.
        self.refused = 0

    def report(self, code: str, subject: str = "", detail: str = "") -> None:
        """It holds, from now on if it did not before; `detail` may change while it lasts."""
        assert code in CONDITIONS, f"{code} has a row in CONDITIONS"
        subject = cut_text(subject, CONDITION_SUBJECT_BYTES_MAX)
        detail = cut_text(detail, CONDITION_DETAIL_BYTES_MAX)
        held = self._held.get((code, subject))
        if held is not None:
            if held.detail != detail:
                self._held[code, subject] = msgspec.structs.replace(held, detail=detail)
            return
        if len(self._held) >= CONDITIONS_HELD_MAX:
            self.refused += 1
            return
        self._held[code, subject] = Condition(code, subject, self._clock.wall_us(), detail)
        self._log("node.condition_began", code=code, subject=subject, detail=detail)

    def clear(self, code: str, subject: str = "") -> None:
        """It holds no more; nothing happens when it did not."""
        assert code in CONDITIONS, f"{code} has a row in CONDITIONS"
        held = self._held.pop((code, cut_text(subject, CONDITION_SUBJECT_BYTES_MAX)), None)
        if held is not None:
            lasted_s = max(0, self._clock.wall_us() - held.since_us) // 1_000_000
            self._log("node.condition_ended", code=code, subject=held.subject, lasted_s=lasted_s)

    def follow(self, holds: bool, code: str, subject: str = "", detail: str = "") -> None:
        """Report or clear."""
        if holds:
            self.report(code, subject, detail)
        else:
            self.clear(code, subject)

    def follow_all(self, code: str, details: Mapping[str, str]) -> None:
        """Of this code exactly these hold: subject -> detail."""
        wanted = {cut_text(subject, CONDITION_SUBJECT_BYTES_MAX): text for subject, text in details.items()}
        for _, subject in [key for key in self._held if key[0] == code]:
            if subject not in wanted:
                self.clear(code, subject)
        for subject, text in wanted.items():
            self.report(code, subject, text)

    def watch(self, look: Callable[[], None]) -> None:
        """`look` reports and clears; it is called whenever somebody wants to know, once a second at least."""
        self._looks.append(look)

    def current(self) -> tuple[Condition, ...]:
        """What holds now, the worst first."""
        for look in self._looks:
            look()
        return tuple(sorted(self._held.values(), key=worst_first))

    def told(self) -> tuple[Condition, ...]:
        """What other nodes are told: the first of `current`."""
        return self.current()[:CONDITIONS_TOLD_MAX]
