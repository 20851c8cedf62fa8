"""What the house report counts stays within bounds: whole classes, constructors, cycles, memos.

What is above a bound is listed with its figure, which may only fall.
"""

from __future__ import annotations

from pathlib import Path

from lockstep.sim.checkers.machines import MACHINES

from .figures import classes, cycles, memos, validates
from .figures.tree import read_tree

TREE = read_tree(Path(__file__).parents[2])
WHOLE_CLASS_LINES_MAX = 400
CONSTRUCTOR_ARGUMENTS_MAX = 8
#: Groups of modules that know each other's types.
TYPE_CYCLES_MAX = 6
#: Whose validate() is called by that of another one; a joining node asks its own state.
PARTS_OF_OTHERS = {
    "lockstep.consensus": "Raft",
    "lockstep.metadata": "ClusterMetadata",
    "lockstep.placement": "Placements",
    "lockstep.topology.joining": "JoinState",
}
#: Modules that write into values that are frozen: memos, and bodies that put their tokens in order when made.
MEMOS = {"lockstep.values.memo", "lockstep.topology.kinds.bootstrap", "lockstep.topology.kinds.move"}


def test_classes_are_small_over_their_whole_inheritance() -> None:
    sizes = {one["class"]: one["lines"] for one in classes.whole_sizes(classes.Classes(TREE))}
    large = {name: lines for name, lines in sizes.items() if lines > WHOLE_CLASS_LINES_MAX}
    assert not large


def test_constructors_take_few_arguments() -> None:
    found = classes.constructors(classes.Classes(TREE))["constructors"]
    wide = {name: count for name, count in found.items() if count > CONSTRUCTOR_ARGUMENTS_MAX}
    assert not wide


def test_no_more_modules_know_each_other() -> None:
    found = cycles.cycles(TREE)
    assert not found["at import time"]
    assert len(found["with TYPE_CHECKING"]) <= TYPE_CYCLES_MAX


def test_values_are_memoized_in_one_place() -> None:
    assert set(memos.memos(TREE)) == MEMOS


def test_machines_are_asked_in_simulations() -> None:
    asked = {f"{machine.__module__}:{machine.__name__}" for machine in MACHINES}
    others = {one.title for one in validates.validates(TREE) if one.owner} - asked
    unasked = [title for title in others if not title.startswith(tuple(PARTS_OF_OTHERS))]
    assert not unasked and all(every > 0 for every in MACHINES.values())
