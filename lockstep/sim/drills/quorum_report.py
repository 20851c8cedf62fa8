"""`lockstep sim quorums`: runs of operations for every layout, compared pair by pair, and the report of it.

Invariant: a run that found no miss beyond the safe distance, or compared nothing, is a failure of its own; so
is a planted flaw that goes unseen.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from lockstep.placement import quorums
from lockstep.placement.placements import ReplicaGroup
from lockstep.placement.quorums import DcOf, Requirement, required_reads
from lockstep.quorum.plans import needs_of
from lockstep.schema.model import Replication
from lockstep.sim.drills.placement_runs import Layout, PlacementRun, layouts
from lockstep.sim.drills.quorum_check import DISTANCE_MAX, SAFE_DISTANCE, Checker, NeedsOf
from lockstep.sim.replaced import replaced
from lockstep.values.errors import ConfigurationError
from lockstep.values.ids import Consistency, NodeId

#: Joins and leaves of one run.
OPERATIONS = 14
#: Violations printed; the rest is counted.
_SHOWN_MAX = 5

Versions = tuple[ReplicaGroup, ...]


class Flaw(msgspec.Struct, frozen=True):
    """What is wrong on purpose: in the versions of a range, in the needs, or in the product's counting."""

    harm: str
    versions: Callable[[Versions], Versions] = lambda versions: versions
    needs: NeedsOf = needs_of
    change: tuple[Any, str, Any] | None = None


def _without_both(versions: Versions) -> Versions:
    """Reads and writes move in one step: the versions with more writers than readers are left out."""
    return tuple(group for group in versions if not group.write_only)


def _reads_at_once(versions: Versions) -> Versions:
    """A pending replica is read before it was written to."""
    return tuple(
        ReplicaGroup(after.reads, before.writes, before.epoch)
        for before, after in zip(versions, (*versions[1:], versions[-1]), strict=True)
    )


def _without_pending(
    consistency: Consistency,
    replication: Replication,
    local_dc: str,
    group: ReplicaGroup,
    dc_of: DcOf,
    writing: bool,
) -> tuple[tuple[Requirement, ...], tuple[NodeId, ...]]:
    """Pending replicas are written to and not counted."""
    return required_reads(consistency, replication, local_dc), group.writes if writing else group.reads


#: Name -> flaw, for `--plant`.
FLAWS: dict[str, Flaw] = {
    "sound": Flaw("nothing"),
    "skip_write_both": Flaw("no stage writes to both sides", versions=_without_both),
    "read_at_once": Flaw("reads move before writes", versions=_reads_at_once),
    "forget_pending": Flaw("a write counts no pending replica", needs=_without_pending),
    "half_is_enough": Flaw(
        "half of the replicas is a majority", change=(quorums, "majority", lambda factor: (factor + 1) // 2)
    ),
}


class Verdict(msgspec.Struct, frozen=True):
    """`elapsed_s` is filled in by who holds a clock; `lines` are the findings, worst first."""

    runs: int
    epochs: int
    ranges: int
    listed_pairs: int
    classed_pairs: int
    represented_pairs: int
    cases: int
    comparisons: int
    checked: dict[int, int]
    unsafe: dict[int, int]
    missed: int
    lines: tuple[str, ...]

    @property
    def vacuous(self) -> bool:
        return not self.comparisons or not all(
            self.unsafe[distance] for distance in range(SAFE_DISTANCE + 1, DISTANCE_MAX + 1)
        )

    @property
    def holds(self) -> bool:
        return not self.missed and not self.vacuous


def check(seed: int, seeds: int, plant: str = "sound", chosen: Sequence[Layout] = ()) -> Verdict:
    """Run every layout with each seed and compare all versions of all ranges."""
    flaw = FLAWS.get(plant)
    if flaw is None:
        raise ConfigurationError(f"there is no flaw {plant!r}", hint=f"one of: {', '.join(FLAWS)}")
    checker = Checker(flaw.needs)
    runs = epochs = ranges = 0
    for number in range(seed, seed + seeds):
        for layout in chosen or layouts():
            run = PlacementRun(layout, number, OPERATIONS)
            runs += 1
            epochs += len(run.values)
            dc_of = run.now.directory.dc_by_id.__getitem__
            with replaced(flaw.change) if flaw.change else contextlib.nullcontext():
                for versions in run.range_versions():
                    ranges += 1
                    checker.versions(layout.replication, flaw.versions(versions), dc_of)
    return Verdict(
        runs, epochs, ranges, checker.listed_pairs, checker.classed_pairs, checker.represented_pairs,
        checker.cases, checker.comparisons, checker.checked, checker.unsafe, len(checker.missed),
        tuple(missed.text() for missed in checker.missed[:_SHOWN_MAX]),
    )  # fmt: skip


def text_of(verdict: Verdict, elapsed_s: float) -> str:
    """The report; rates are of the whole run, its planning included."""
    lines = [
        f"{verdict.runs} runs, {verdict.epochs:,} epochs, {verdict.ranges:,} ranges with all their versions",
        f"{verdict.comparisons:,} comparisons of two versions and levels, {verdict.cases:,} of them unlike",
        f"{verdict.listed_pairs:,} pairs of quorums compared one by one, standing for "
        f"{verdict.represented_pairs:,}; {verdict.classed_pairs:,} pairs by class",
        f"{elapsed_s:.1f} s in all",
    ]
    for distance in range(DISTANCE_MAX + 1):
        promise = "must be safe" if distance <= SAFE_DISTANCE else "unsafe where replicas moved"
        lines.append(
            f"  {distance} changes apart: {verdict.unsafe[distance]:,} of {verdict.checked[distance]:,} "
            f"comparisons can miss a write ({promise})"
        )
    lines.extend(f"violation: {line}" for line in verdict.lines)
    if verdict.missed:
        lines.append(f"{verdict.missed:,} violations")
    elif verdict.vacuous:
        lines.append("vacuous: nothing was unsafe at any distance, so nothing was tried")
    else:
        lines.append("every read meets every acknowledged write between neighbouring epochs")
    return "\n".join(lines)
