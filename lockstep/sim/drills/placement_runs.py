"""Runs of topology operations on the metadata value alone: every version that each range ever had.

Invariant: each entry is judged by the leader's tip as in a cluster; barriers are taken as passed, so each
stage follows the one before it and the versions are exactly those that neighbouring coordinators can have.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from lockstep.metadata import schema_change, transformations
from lockstep.metadata.cluster import ClusterMetadata, empty_cluster
from lockstep.metadata.directory import NodeState
from lockstep.metadata.log.registry import Registry, Transformation
from lockstep.metadata.log.tip import Appended, Refused, Tip
from lockstep.metadata.transformations import Founder, Initialize, Register
from lockstep.placement.placements import ReplicaGroup
from lockstep.schema.changes import CreateKeyspace
from lockstep.schema.model import Replication
from lockstep.sim.runtime.streams import stream
from lockstep.topology import transformations as topology_transformations
from lockstep.topology.kind import stage_row
from lockstep.topology.kinds.bootstrap import Bootstrap
from lockstep.topology.kinds.decommission import Decommission
from lockstep.topology.kinds.registry import UNIONS
from lockstep.topology.transformations import AdvanceOperation, CancelOperation, PrepareOperation
from lockstep.values.ids import NodeId
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN

#: Tokens of one node: several ranges each, and few enough that a run of forty operations takes a second.
_TOKENS = 2
#: One operation in so many is cancelled where it can be.
_CANCEL_ONE_IN = 4


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
    return tuple(found)


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
        change = CreateKeyspace("k", _options(self.layout.replication))
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
        replication = self.layout.replication
        rings = [value.placements.ring(replication) for value in self.values]
        bounds = sorted({placed.range.right for ring in rings for placed in ring.ranges})
        for right in bounds:
            versions: list[ReplicaGroup] = []
            for ring in rings:
                group = ring.group_for(right)
                if not versions or (versions[-1].reads, versions[-1].writes) != (group.reads, group.writes):
                    versions.append(group)
            yield tuple(versions)


def _options(replication: Replication) -> tuple[tuple[str, str], ...]:
    named = [(dc or "replication_factor", str(factor)) for dc, factor in replication.factors]
    return (("class", replication.strategy), *named)
