"""Quorums made for tests, without metadata."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lockstep.placement.quorums import Requirement
from lockstep.quorum.round import Target, asking
from lockstep.values.ids import NodeId


class Made:
    """Nodes with their data centres, what must be heard of each, and the epochs of a plan."""

    def __init__(
        self, nodes: Sequence[tuple[int, str]], needs: Sequence[tuple[str, int]], epoch: int, needs_epoch: int
    ) -> None:
        self.epoch = epoch
        self.needs_epoch = needs_epoch
        self.targets = tuple(Target(NodeId(node), (f"n{node}", 1), dc) for node, dc in nodes)
        self.by_node = {target.node: target for target in self.targets}
        self.everyone = asking(self.targets)
        self.readers: frozenset[NodeId] | None = None
        self.needs = tuple(Requirement(dc, count) for dc, count in needs)
        self.required = max(
            sum(count for dc, count in needs if dc), max((count for dc, count in needs if not dc), default=0)
        )

    def satisfied_by(self, nodes: Iterable[NodeId]) -> bool:
        held = set(nodes)
        return all(
            sum(1 for target in self.targets if target.node in held and need.dc in ("", target.dc))
            >= need.count
            for need in self.needs
        )

    def target(self, node: int) -> Target:
        return next(target for target in self.targets if target.node == node)
