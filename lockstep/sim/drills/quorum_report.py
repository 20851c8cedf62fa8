"""`lockstep sim quorums`: runs of operations for every layout, compared pair by pair, and the report of it.

A run of operations is on the metadata value alone: each entry is judged by the leader's tip as in a cluster,
and barriers are taken as passed, so the versions of a range are exactly those that neighbouring coordinators
can have. Invariant: a run that found no miss beyond the safe distance, or compared nothing, is a failure of
its own; so is a planted flaw that goes unseen.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from lockstep.metadata import schema_change, transformations
from lockstep.metadata.cluster import ClusterMetadata, empty_cluster
from lockstep.metadata.directory import NodeState
from lockstep.metadata.log.registry import Registry, Transformation
from lockstep.metadata.log.tip import Appended, Refused, Tip
from lockstep.metadata.transformations import Founder, Initialize, Register
from lockstep.placement import quorums
from lockstep.placement.placements import PlacedRange, ReplicaGroup, RingPlacement
from lockstep.placement.quorums import DcOf, Requirement, required_reads
from lockstep.quorum.needs import needs_of
from lockstep.schema.changes import CreateKeyspace
from lockstep.schema.model import Replication
from lockstep.sim.drills.quorum_check import DISTANCE_MAX, SAFE_DISTANCE, Checker, NeedsOf
from lockstep.sim.drills.witness_check import WitnessCheck
from lockstep.sim.plant import replaced
from lockstep.sim.runtime.streams import stream
from lockstep.topology import roles, streams
from lockstep.topology import transformations as topology_transformations
from lockstep.topology.kind import stage_row
from lockstep.topology.kinds.bootstrap import Bootstrap
from lockstep.topology.kinds.decommission import Decommission
from lockstep.topology.kinds.registry import UNIONS
from lockstep.topology.transformations import AdvanceOperation, CancelOperation, PrepareOperation
from lockstep.values.errors import ConfigurationError
from lockstep.values.ids import Consistency, NodeId
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN

#: Tokens of one node: several ranges each, and few enough that a run of forty operations takes a second.
_TOKENS = 2
#: One operation in so many is cancelled where it can be.
_CANCEL_ONE_IN = 4
#: Above it two data centres with witnesses say nothing that one does not.
_WITNESSES_TWICE_MAX = 5


class Layout(msgspec.Struct, frozen=True):
    """Data centres with their racks' count and the nodes to begin with and to grow to."""

    name: str
    replication: Replication
    dcs: tuple[str, ...]
    founders_per_dc: int
    nodes_per_dc_max: int


def layouts(factors: Sequence[int] = range(1, 8)) -> tuple[Layout, ...]:
    """SimpleStrategy and one data centre for each factor; two and three data centres with mixed ones."""
    found = []
    for factor in factors:
        simple = Replication("SimpleStrategy", (("", factor),))
        one = Replication("NetworkTopologyStrategy", (("dc1", factor),))
        found.append(Layout(f"simple {factor}", simple, ("dc1",), factor, factor + 2))
        found.append(Layout(f"one dc {factor}", one, ("dc1",), factor, factor + 2))
        smaller = max(1, factor - 1)
        two = Replication("NetworkTopologyStrategy", (("dc1", factor), ("dc2", smaller)))
        found.append(Layout(f"two dcs {factor}+{smaller}", two, ("dc1", "dc2"), factor, factor + 2))
        if factor <= 5:
            factors_of_three = (("dc1", factor), ("dc2", smaller), ("dc3", factor))
            three = Replication("NetworkTopologyStrategy", factors_of_three)
            found.append(Layout(f"three dcs {factor}", three, ("dc1", "dc2", "dc3"), factor, factor + 1))
        found += _with_witnesses(factor)
    return tuple(found)


def _with_witnesses(factor: int) -> list[Layout]:
    """As many witnesses as there can be; and where a data centre has nothing else."""
    some = (factor - 1) // 2
    if not some:
        return []
    one = (("dc1", -some), ("dc1", factor))
    found = [Layout(f"one dc {factor}/{some}", _topology(*one), ("dc1",), factor, factor + 2)]
    if factor <= _WITNESSES_TWICE_MAX:
        two = _topology(*one, ("dc2", -some), ("dc2", factor))
        log_only = _topology(("dc1", factor), ("dc2", -some), ("dc2", some))
        dcs = ("dc1", "dc2")
        found.append(Layout(f"two dcs {factor}/{some}", two, dcs, factor, factor + 2))
        found.append(Layout(f"two dcs {factor}+{some}/{some}", log_only, dcs, factor, factor + 2))
    return found


def _topology(*counts: tuple[str, int]) -> Replication:
    return Replication("NetworkTopologyStrategy", counts)


class PlacementRun:
    """`values` has the metadata of every epoch from the first keyspace on."""

    def __init__(self, layout: Layout, seed: int, operations: int) -> None:
        self.layout = layout
        self._draw = stream(seed, f"placements {layout.name}")
        self._registry = Registry(
            transformations.KINDS, schema_change.KINDS, topology_transformations.KINDS, unions=UNIONS
        )
        self._tip = Tip(empty_cluster(), self._registry)
        self._number = 0
        self.values: list[ClusterMetadata] = []
        self._found()
        for _ in range(operations):
            self._operation()

    @property
    def now(self) -> ClusterMetadata:
        return self._tip.value

    def _submit(self, body: Transformation) -> bool:
        """False when it is refused, as an operation on too few nodes is."""
        self._number += 1
        kind, encoded = self._registry.encode(body)
        entry_id = self._number.to_bytes(16, "big")
        judged = self._tip.judge(entry_id, kind, encoded, "sim", 0, 1)
        if isinstance(judged, Refused):
            return False
        assert isinstance(judged, Appended), f"{judged} of a fresh id"
        self._tip.applied_now(self._tip.value)
        self.values.append(self.now)
        return True

    def _found(self) -> None:
        founders = []
        for number in range(self.layout.founders_per_dc * len(self.layout.dcs)):
            dc = self.layout.dcs[number % len(self.layout.dcs)]
            founders.append(
                Founder(
                    f"host-{number}", f"10.0.0.{number + 1}", 7000, 9042, 7080, dc, f"rack{number % 3}",
                    self._tokens(),
                )
            )  # fmt: skip
        assert self._submit(Initialize("cluster", "quorums", tuple(founders)))
        tracked = "tracked" if self.layout.replication.has_witnesses else None
        change = CreateKeyspace("k", _options(self.layout.replication), replication_type=tracked)
        assert self._submit(schema_change.ChangeSchema(change))
        self.values = [self.now]

    def _tokens(self) -> tuple[int, ...]:
        span = TOKEN_MAX - TOKEN_MIN
        return tuple(sorted(TOKEN_MIN + 1 + self._draw.randrange(span - 1) for _ in range(_TOKENS)))

    def _operation(self) -> None:
        """One join or leave, to its end or cancelled half-way."""
        normal = self.now.directory.in_state(NodeState.NORMAL)
        smallest = self.layout.founders_per_dc * len(self.layout.dcs)
        largest = self.layout.nodes_per_dc_max * len(self.layout.dcs)
        grow = len(normal) <= max(1, smallest - 1) or (len(normal) < largest and self._draw.randrange(2) == 0)
        if grow:
            node = self._register()
            begun = self._submit(PrepareOperation(Bootstrap(node, self._tokens())))
        else:
            leaving = normal[self._draw.randrange(len(normal))]
            begun = self._submit(PrepareOperation(Decommission(leaving.id)))
        if not begun:
            return
        operation = self.now.operations[-1]
        cancel = self._draw.randrange(_CANCEL_ONE_IN) == 0
        while operation.id in self.now.operations_by_id:
            operation = self.now.operations_by_id[operation.id]
            if cancel and stage_row(operation).on_failure and self._draw.randrange(2):
                assert self._submit(CancelOperation(operation.id, "sim"))
            else:
                assert self._submit(AdvanceOperation(operation.id, operation.stage))

    def _register(self) -> NodeId:
        directory = self.now.directory
        waiting = directory.in_state(NodeState.NONE)
        if waiting:
            return waiting[0].id
        number = directory.next_node_id
        counts = {dc: sum(n.dc == dc for n in directory.in_state(NodeState.NORMAL)) for dc in self.layout.dcs}
        dc = min(self.layout.dcs, key=lambda name: (counts[name], name))
        assert self._submit(
            Register(f"join-{number}", f"10.0.1.{number}", 7000, 9042, 7080, dc, f"rack{number % 3}")
        )
        return NodeId(number)

    def range_versions(self) -> Iterator[tuple[ReplicaGroup, ...]]:
        """For each smallest range of the whole run, its replica groups in order of change."""
        rings = [value.placements.ring(value.schema.by_name["k"].group) for value in self.values]
        bounds = sorted({placed.range.right for ring in rings for placed in ring.ranges})
        for right in bounds:
            versions: list[ReplicaGroup] = []
            for ring in rings:
                group = ring.group_for(right)
                if not versions or (versions[-1].reads, versions[-1].writes) != (group.reads, group.writes):
                    versions.append(group)
            yield tuple(versions)


def _options(replication: Replication) -> tuple[tuple[str, str], ...]:
    named = [(dc or "replication_factor", factor) for dc, factor in replication.factor_texts]
    return (("class", replication.strategy), *named)


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


def _all_readers(_cluster: ClusterMetadata, _ring: RingPlacement, placed: PlacedRange) -> Sequence[NodeId]:
    return placed.group.reads


#: Name -> flaw, for `--plant`.
FLAWS: dict[str, Flaw] = {
    "sound": Flaw("nothing"),
    "skip_write_both": Flaw("no stage writes to both sides", versions=_without_both),
    "read_at_once": Flaw("reads move before writes", versions=_reads_at_once),
    "forget_pending": Flaw("a write counts no pending replica", needs=_without_pending),
    "half_is_enough": Flaw(
        "half of the replicas is a majority", change=(quorums, "majority", lambda factor: (factor + 1) // 2)
    ),
    "witness_shows": Flaw("a witness is asked for data", change=(roles, "readers", _all_readers)),
    "promoted_unfilled": Flaw("who becomes full is not filled", change=(streams, "promoted", lambda *_: ())),
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
    #: Ranges with witnesses, by epoch, quorums of them that were looked at for data, and replicas filled.
    witnessed: tuple[int, int, int] = (0, 0, 0)

    @property
    def vacuous(self) -> bool:
        return not self.comparisons or not all(
            self.unsafe[distance] for distance in range(SAFE_DISTANCE + 1, DISTANCE_MAX + 1)
        )

    @property
    def holds(self) -> bool:
        return not self.missed and not self.vacuous


def check(
    seed: int,
    seeds: int,
    plant: str = "sound",
    chosen: Sequence[Layout] = (),
    operations: int = OPERATIONS,
) -> Verdict:
    """Run every layout with each seed and compare all versions of all ranges."""
    flaw = FLAWS.get(plant)
    if flaw is None:
        raise ConfigurationError(f"there is no flaw {plant!r}", hint=f"one of: {', '.join(FLAWS)}")
    checker, witnesses = Checker(flaw.needs), WitnessCheck()
    runs = epochs = ranges = 0
    for number in range(seed, seed + seeds):
        for layout in chosen or layouts():
            run = PlacementRun(layout, number, operations)
            runs += 1
            epochs += len(run.values)
            dc_of = run.now.directory.dc_by_id.__getitem__
            with replaced(flaw.change) if flaw.change else contextlib.nullcontext():
                for versions in run.range_versions():
                    ranges += 1
                    checker.versions(layout.replication, flaw.versions(versions), dc_of)
                witnesses.values(run.values if layout.replication.has_witnesses else ())
    missed = (*(one.text() for one in checker.missed), *witnesses.missed)
    return Verdict(
        runs, epochs, ranges, checker.listed_pairs, checker.classed_pairs, checker.represented_pairs,
        checker.cases, checker.comparisons, checker.checked, checker.unsafe, len(missed), missed[:_SHOWN_MAX],
        (witnesses.ranges, witnesses.quorums, witnesses.fills),
    )  # fmt: skip


def text_of(verdict: Verdict, elapsed_s: float) -> str:
    """The report; rates are of the whole run, its planning included."""
    lines = [
        f"{verdict.runs} runs, {verdict.epochs:,} epochs, {verdict.ranges:,} ranges with all their versions",
        f"{verdict.comparisons:,} comparisons of two versions and levels, {verdict.cases:,} of them unlike",
        f"{verdict.listed_pairs:,} pairs of quorums compared one by one, standing for "
        f"{verdict.represented_pairs:,}; {verdict.classed_pairs:,} pairs by class",
        "{:,} ranges with witnesses, {:,} quorums of them and {:,} replicas that are filled: each has data"
        "".format(*verdict.witnessed),
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
