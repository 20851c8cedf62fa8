"""Rings for tests: members n1, n2, ... in one data centre, one token each, and changes drawn at random."""

from __future__ import annotations

import random

from lockstep.ring.changes import STEPS, Change, Kind, Step, decide, problem
from lockstep.ring.ring import Member, Mode, Ring, Status, applied, found


def founders(count: int, mode: Mode = Mode.QUORUM, tokens: int = 1) -> Ring:
    return found(
        mode,
        [
            Member(
                f"n{number}", 1, Status.NORMAL, "dc1", "r1", tuple(range(number * 100, number * 100 + tokens))
            )
            for number in range(1, count + 1)
        ],
    )


def join(number: int, step: Step = Step.BEGIN) -> Change:
    if step is not Step.BEGIN:
        return Change(Kind.JOIN, step, f"n{number}")
    return Change(Kind.JOIN, step, f"n{number}", (number * 100,), dc="dc1", rack="r1")


def change(kind: Kind, number: int, step: Step = Step.BEGIN) -> Change:
    return Change(kind, step, f"n{number}")


def after(ring: Ring, *changes: Change, op: str = "op") -> Ring:
    assert not problem(ring, changes, {}), problem(ring, changes, {})
    return applied(ring, decide(ring, op, changes))


def drawn_change(ring: Ring, draw: random.Random, fresh: int) -> Change:
    """Some change that the table has for some member, or one of a new member; it may be refused."""
    kind, step = draw.choice(list(STEPS))
    node = f"n{fresh}" if STEPS[kind, step][0] is None else draw.choice(ring.members).node
    takes = step is Step.BEGIN and kind in (Kind.JOIN, Kind.MOVE)
    replaces = step is Step.BEGIN and kind is Kind.REPLACE
    return Change(
        kind,
        step,
        node,
        (draw.randrange(1_000_000),) if takes else (),
        draw.choice(ring.members).node if replaces else "",
        "dc1" if STEPS[kind, step][0] is None else "",
        "r1" if STEPS[kind, step][0] is None else "",
    )


def walk(ring: Ring, draw: random.Random, steps: int) -> list[Ring]:
    """The ring and what becomes of it in so many steps that are not refused."""
    rings = [ring]
    for number in range(steps):
        changes: tuple[Change, ...] = ()
        while not changes or problem(rings[-1], changes, {"dc1": 1}):
            fresh = 10_000 + number * 10
            changes = tuple(drawn_change(rings[-1], draw, fresh + at) for at in range(draw.choice((1, 1, 2))))
        rings.append(applied(rings[-1], decide(rings[-1], f"op{number}", changes)))
    return rings
