"""LWT-1: conditional writes of one partition and its serial reads are linearizable.

A register is compared and set; every value is written at most once. So the writes that took effect are a
chain, each one expecting what the one before it wrote, and every answer lies at one place of the chain.
Beside the register a set keeps every value: whoever reads both sees the register's value and all before it.
One list has them appended, and one prepended, so both show the order in which they were decided.
Invariant: the check is exact: a history passes if and only if some order of its effects explains all answers
and keeps to real time.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence

import msgspec

from lockstep.sim.checkers.violation import Violation
from lockstep.sim.load.history import Outcome

_RULE = "LWT-1"


class Decided(msgspec.Struct, frozen=True):
    """One request and its end. A write has `wrote`: the value it sets if `expected` is there (None: nothing).

    With outcome OK, `applied` says whether it did, and `seen` is what else was there; a read has only `seen`,
    in `held` what the set held, and in `appended` and `prepended` what the lists did.
    """

    client: str
    key: bytes
    start_ns: int
    end_ns: int
    outcome: Outcome
    expected: bytes | None = None
    wrote: bytes | None = None
    applied: bool = False
    seen: bytes | None = None
    held: frozenset[bytes] | None = None
    appended: tuple[bytes, ...] | None = None
    prepended: tuple[bytes, ...] | None = None

    def text(self) -> str:
        if self.wrote is None:
            what = f"read {_shown(self.seen)}"
        else:
            what = f"set {_shown(self.wrote)} if {_shown(self.expected)}: "
            if self.outcome is not Outcome.OK:
                what += self.outcome
            else:
                what += "applied" if self.applied else f"there was {_shown(self.seen)}"
        return (
            f"{self.client} [{self.start_ns / 1e9:.4f}, {self.end_ns / 1e9:.4f}] {self.key.decode()} {what}"
        )


def check_decisions(events: Sequence[Decided]) -> int:
    """The number of judged answers. Raises the first Violation."""
    judged = 0
    for key in sorted({event.key for event in events}):
        judged += _check_register([event for event in events if event.key == key])
    return judged


def _check_register(events: Sequence[Decided]) -> int:
    writes: dict[bytes | None, Decided] = {event.wrote: event for event in events if event.wrote is not None}
    places = _chain(events, writes)
    spans: list[tuple[int, int, tuple[int, int], Decided]] = []
    for event in events:
        if event.wrote is not None and _took_effect(event, places):
            end_ns = event.end_ns if event.outcome is Outcome.OK else _NEVER_NS
            spans.append((event.start_ns, end_ns, (places[event.wrote], 0), event))
        elif event.outcome is Outcome.OK:
            if event.wrote is not None and event.seen == event.expected:
                raise Violation(_RULE, f"refused although what it expects was there: {event.text()}")
            spans.append((event.start_ns, event.end_ns, (places[event.seen], 1), event))
            _check_held(event, places)
            _check_lists(event, places)
    _check_times(spans)
    return len(spans)


_NEVER_NS = 1 << 62


def _check_held(event: Decided, places: Mapping[bytes | None, int]) -> None:
    if event.held is None:
        return
    last = places[event.seen]
    expected = {value for value, place in places.items() if value is not None and place <= last}
    if event.held != expected:
        lost, early = sorted(expected - event.held), sorted(event.held - expected)
        raise Violation(_RULE, f"{event.text()}, where {lost} are lost and {early} not yet there")


def _check_lists(event: Decided, places: Mapping[bytes | None, int]) -> None:
    """Of two values that both are there the one decided later stands behind in one list, in front in the
    other; `_check_held` says which have to be there."""
    last = places[event.seen]
    order = [value for value, place in places.items() if value is not None and place <= last]
    for name, seen, expected in (
        ("appended", event.appended, order),
        ("prepended", event.prepended, order[::-1]),
    ):
        if seen is not None and list(seen) != expected:
            raise Violation(
                _RULE, f"{event.text()}, where {name} are {list(seen)}, and decided was {expected}"
            )


def _took_effect(event: Decided, places: Mapping[bytes | None, int]) -> bool:
    if event.outcome is Outcome.OK:
        return event.applied
    return event.wrote in places


def _chain(events: Sequence[Decided], writes: Mapping[bytes | None, Decided]) -> dict[bytes | None, int]:
    """The place of each value that was there at some time."""
    shown: dict[bytes | None, Decided] = {}
    for event in events:
        if event.outcome is Outcome.OK:
            shown.setdefault(event.wrote if event.applied else event.seen, event)
    after: dict[bytes | None, bytes] = {}
    found: dict[bytes | None, None] = {None: None}
    for first, witness in shown.items():
        value = first
        while value not in found:
            found[value] = None
            write = writes.get(value)
            if write is None:
                raise Violation(_RULE, f"nobody wrote the value of {witness.text()}")
            if write.outcome is Outcome.FAILED or (write.outcome is Outcome.OK and not write.applied):
                raise Violation(_RULE, f"{write.text()}; but it took effect: {witness.text()}")
            assert value is not None, "nothing is not written"
            if write.expected in after:
                other = writes[after[write.expected]]
                raise Violation(_RULE, f"both found the same: {other.text()}; {write.text()}")
            after[write.expected] = value
            value = write.expected
    places: dict[bytes | None, int] = {None: 0}
    value = None
    while value in after:
        value = after[value]
        places[value] = len(places)
    lost = [value for value in found if value not in places]
    if lost:
        raise Violation(_RULE, f"values follow each other in a circle, among them {_shown(lost[0])}")
    return places


def _check_times(spans: Sequence[tuple[int, int, tuple[int, int], Decided]]) -> None:
    """Whoever began after another one ended is not placed before it."""
    by_end = sorted(spans, key=lambda span: span[1])
    ends = [span[1] for span in by_end]
    furthest: list[tuple[tuple[int, int], Decided]] = []
    for _, _, place, event in by_end:
        furthest.append(
            max((furthest[-1], (place, event)), key=lambda one: one[0]) if furthest else (place, event)
        )
    for start_ns, _, place, event in spans:
        before = bisect.bisect_left(ends, start_ns)
        if before and furthest[before - 1][0] > place:
            raise Violation(_RULE, f"{furthest[before - 1][1].text()}; and later {event.text()}")


def _shown(value: bytes | None) -> str:
    return "nothing" if value is None else value.decode()
