"""The exhaustive comparison of quorums: agrees with search, holds for real runs, finds planted flaws."""

from __future__ import annotations

import itertools
import random
import time

import pytest

from lockstep.placement.quorums import Requirement
from lockstep.sim.drills.quorum_check import Case, Side, compare, missing_pairs, quorum_masks
from lockstep.sim.drills.quorum_report import FLAWS, check, layouts

_SMALL = tuple(layout for layout in layouts((2, 3)) if layout.name != "three dcs 3")


def _sets(side: Side) -> list[set[int]]:
    """The slow way: every subset, each need counted by hand."""
    found = []
    for size in range(len(side.members) + 1):
        for chosen in itertools.combinations(side.members, size):
            if all(
                sum(1 for node in chosen if need.dc in ("", side.homes[node])) >= need.count
                for need in side.needs
            ):
                found.append(set(chosen))
    return found


@pytest.mark.parametrize("seed", range(60))
def test_pairs_agree_with_a_search_over_sets(seed: int) -> None:
    rng = random.Random(seed)
    size = rng.randint(1, 7)
    homes = tuple(rng.choice(("dc1", "dc2")) for _ in range(size))
    sides = []
    for _ in range(2):
        members = tuple(sorted(rng.sample(range(size), rng.randint(1, size))))
        needs = tuple(
            Requirement(rng.choice(("", "dc1", "dc2")), rng.randint(0, 4)) for _ in range(rng.randint(1, 2))
        )
        sides.append(Side(members, homes, needs))
    reading, writing = sides
    wanted = sum(not (one & other) for one in _sets(reading) for other in _sets(writing))
    assert missing_pairs(quorum_masks(reading), quorum_masks(writing)) == wanted
    case = Case(homes, reading.members, reading.needs, writing.members, writing.needs)
    assert compare(case).missing == wanted


def test_unions_too_large_to_list_are_compared_by_class() -> None:
    homes = ("",) * 14
    apart = Case(homes, tuple(range(7)), (Requirement("", 4),), tuple(range(7, 14)), (Requirement("", 4),))
    assert compare(apart).listed == 0 and compare(apart).missing > 0
    same = Case(homes, tuple(range(14)), (Requirement("", 8),), tuple(range(14)), (Requirement("", 7),))
    assert compare(same).missing == 0
    close = Case(homes, tuple(range(14)), (Requirement("", 7),), tuple(range(14)), (Requirement("", 7),))
    assert compare(close).missing > 0


def test_neighbouring_epochs_are_safe_and_distant_ones_are_not() -> None:
    verdict = check(1, 1, chosen=_SMALL)
    assert verdict.holds, verdict.lines
    assert verdict.unsafe[2] and verdict.unsafe[3] and verdict.listed_pairs > 10_000


@pytest.mark.parametrize("flaw", [name for name in FLAWS if name != "sound"])
def test_a_planted_flaw_is_found(flaw: str) -> None:
    assert check(1, 1, flaw, chosen=_SMALL).missed


def test_pairs_are_compared_faster_than_fifty_million_a_second() -> None:
    everyone = Side(tuple(range(12)), ("",) * 12, (Requirement("", 6),))
    masks = quorum_masks(everyone)
    rounds, began = 10, time.process_time()
    for _ in range(rounds):
        missing_pairs(masks, masks)
    assert rounds * len(masks) ** 2 / (time.process_time() - began) > 50_000_000
