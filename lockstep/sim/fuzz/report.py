"""Runs of random statements: how many, what they found, and the words for it.

Invariant: what is printed repeats the run: a seed and the count of statements say all of it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Final

import msgspec

from lockstep.sim.fuzz.door import Door
from lockstep.sim.fuzz.planted import PLANTS
from lockstep.sim.fuzz.play import SCRIPT_STATEMENTS, Difference, Tally, draw_script, in_cql, play
from lockstep.sim.fuzz.shrink import shrunk
from lockstep.values.errors import ConfigurationError

#: With faults a script is shorter, for an unknown outcome ends it.
_FAULTY_STATEMENTS: Final = 150


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What to run: `nodes` above one strikes them with faults."""

    seed: int = 1
    statements: int = 10_000
    nodes: int = 1
    shrink: bool = False
    plant: str = ""
    only: int = -1


class Outcome(msgspec.Struct):
    tally: Tally
    found: list[Difference]


def run(order: Order, told: Callable[[str], None]) -> Outcome:
    """One seed: scripts of new tables on the same nodes until there were that many statements."""
    outcome = Outcome(Tally(), [])
    size = _FAULTY_STATEMENTS if order.nodes > 1 else min(SCRIPT_STATEMENTS, order.statements)
    with _planted(order.plant):
        door = Door(order.seed, order.nodes)
        try:
            number = max(order.only, 0)
            while outcome.tally.statements < order.statements:
                script = draw_script(order.seed, number, statements=size, nodes=order.nodes)
                difference = play(script, door, outcome.tally)
                if difference is not None:
                    outcome.found.append(difference)
                    told(_text(order, number, difference))
                    # The nodes may be in any state now.
                    door.close()
                    door = Door(order.seed, order.nodes)
                number += 1
                if order.only >= 0 or (order.plant and outcome.found):
                    break
        finally:
            door.close()
    return outcome


def _text(order: Order, number: int, difference: Difference) -> str:
    again = f"lockstep sim fuzz --seed {order.seed} --table {number} --nodes {order.nodes}"
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
    for name in [only] if only else PLANTS:
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
    if name not in PLANTS:
        raise ConfigurationError(f"there is no planted bug {name}", hint=f"one of {', '.join(PLANTS)}")
    return PLANTS[name].plant()


def text_of(outcome: Outcome, order: Order, elapsed_s: float) -> str:
    tally = outcome.tally
    return (
        f"seed {order.seed}: {tally.statements} statements, {tally.rows} rows in {tally.pages} pages, "
        f"{tally.refused} refused, {tally.unknown} of unknown outcome, {len(outcome.found)} differences, "
        f"{elapsed_s:.0f} s"
    )
