"""What the house report counts stays within bounds: whole classes, constructors, cycles, memos, walks.

What is above a bound is listed with its figure, which may only fall.
"""

from __future__ import annotations

import functools

from lockstep.sim.checkers.machines import MACHINES, QUESTIONS, is_step

from .figures import classes, cycles, memos, validates, walks
from .figures.tree import Tree, read_tree
from .sources import ROOT

WHOLE_CLASS_LINES_MAX = 400
CONSTRUCTOR_ARGUMENTS_MAX = 8
#: What walks through the house may take. A room asks none above it: what it asks about lies in its own room,
#: or further below, where rooms above put it.
WALKS_MAX = {
    "INSERT at QUORUM": {"modules": 35, "cross-module calls": 143, "calls up": 0},
    "SELECT of a partition at QUORUM": {"calls up": 0},
    "SELECT of a token range": {"calls up": 0},
}
#: Whose validate() is called by that of another one; a joining node asks its own state, and the simulations
#: of rings ask them after each step.
PARTS_OF_OTHERS = {
    "lockstep.consensus": "Raft",
    "lockstep.metadata": "ClusterMetadata",
    "lockstep.placement": "Placements",
    "lockstep.topology.joining": "JoinState",
    "lockstep.ring": "RingMember",
    "lockstep.tracking.held": "Journal",
    "lockstep.storage.shard_logs": "Journal",
    "lockstep.storage.place_list": "Journal",
}
#: Modules that write into values that are frozen: memos, and bodies that put their tokens in order when made.
MEMOS = {"lockstep.values.memo", "lockstep.topology.kinds.bootstrap", "lockstep.topology.kinds.move"}


@functools.cache
def tree() -> Tree:
    """Read when a test asks: others collect this module too."""
    return read_tree(ROOT)


@functools.cache
def all_classes() -> classes.Classes:
    return classes.Classes(tree())


def test_classes_are_small_over_their_whole_inheritance() -> None:
    sizes = {one["class"]: one["lines"] for one in classes.whole_sizes(all_classes())}
    large = {name: lines for name, lines in sizes.items() if lines > WHOLE_CLASS_LINES_MAX}
    assert not large


def test_constructors_take_few_arguments() -> None:
    found = classes.constructors(all_classes())["constructors"]
    wide = {name: count for name, count in found.items() if count > CONSTRUCTOR_ARGUMENTS_MAX}
    assert not wide


def test_no_modules_know_each_other() -> None:
    found = cycles.cycles(tree())
    assert not found["at import time"] and not found["with TYPE_CHECKING"]


def test_requests_walk_straight_down() -> None:
    found = walks.requests(ROOT)
    for name, bounds in WALKS_MAX.items():
        figures = {figure: found[name][figure] for figure in bounds}
        assert all(figures[figure] <= most for figure, most in bounds.items()), (name, figures, found[name])


def test_values_are_memoized_in_one_place() -> None:
    assert set(memos.memos(tree())) == MEMOS


def test_machines_are_asked_in_simulations() -> None:
    asked = {f"{machine.__module__}:{machine.__name__}" for machine in MACHINES}
    others = {one.title for one in validates.validates(tree()) if one.owner} - asked
    unasked = [title for title in others if not title.startswith(tuple(PARTS_OF_OTHERS))]
    assert not unasked and all(every > 0 for every in MACHINES.values())
    for machine, names in QUESTIONS.items():
        steps = {name for name, member in vars(machine).items() if is_step(name, member)}
        assert names < steps and machine in MACHINES, machine
