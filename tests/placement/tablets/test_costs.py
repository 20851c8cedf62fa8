"""What requests cost at each node counts among moves that leave disks as even as they are."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from lockstep.placement.tablets.load import (
    COST_BAND,
    COST_MAX,
    COST_RATE_MIN,
    COST_ROUNDS,
    GIB,
    LoadStatistics,
    NodeLoad,
    TabletLoad,
    steadied,
)
from lockstep.placement.tablets.map import even_rights, map_of
from lockstep.placement.tablets.target import BalancedTable
from lockstep.values.ids import NodeId

from .clusters import CAPACITY, Carried, hosts_of, setting

TABLETS = 40
#: Requests a second of the tablet that has fewest, and by how many others have more.
LEAST = 10.0
STEP = 30.0


class Busy:
    """Nodes with about as many tablets, bytes and requests each; a request costs what its tablet, and the
    node, make of it."""

    def __init__(self, of_node: Mapping[int, float], of_tablet: Mapping[int, float]) -> None:
        self.hosts = hosts_of(*[("dc1", "a", 1)] * len(of_node))
        self.of_node, self.of_tablet = of_node, of_tablet
        placed = [
            (right, ((NodeId(1 + at % len(of_node)), 0),)) for at, right in enumerate(even_rights(TABLETS))
        ]
        one = map_of(1, setting(dc1=1), placed, 1)
        self.number = {right: at for at, right in enumerate(even_rights(TABLETS))}
        self.carried = Carried(self.hosts, [BalancedTable(one)], LoadStatistics())
        self.carried.statistics = LoadStatistics().refreshed(self.said(placed))

    def cpu(self, node: int, rights: list[int]) -> float:
        costs = (self.of_tablet.get(self.number[right], 1.0) * self.rate(right) for right in rights)
        return self.of_node[node] * sum(costs)

    def rate(self, right: int) -> float:
        return LEAST + self.number[right] * 7 % 10 * STEP

    def said(self, placed: list[tuple[int, tuple[tuple[NodeId, int], ...]]]) -> dict[NodeId, NodeLoad]:
        found = {}
        for host in self.hosts:
            held = [right for right, replicas in placed if replicas[0][0] == host.node]
            loads = {right: TabletLoad(GIB, self.rate(right)) for right in held}
            found[host.node] = NodeLoad(CAPACITY, self.cpu(host.node, held) / 1000, {1: loads})
        return found

    def now(self) -> dict[NodeId, NodeLoad]:
        return self.said([(tablet.right, tablet.replicas) for tablet in self.carried.maps[1].tablets()])

    def round(self) -> int:
        """Nodes are asked, and plans are carried out; how many moves that were."""
        before = len(self.carried.moved)
        self.carried.statistics = self.carried.statistics.refreshed(self.now())
        self.carried.run()
        return len(self.carried.moved) - before

    def rest(self) -> int:
        """Rounds until nothing has moved for as many as it takes to believe what processors do."""
        quiet = 0
        for number in range(200):
            quiet = 0 if self.round() else quiet + 1
            if quiet > COST_ROUNDS:
                return number
        raise AssertionError("it never rests")


def apart(busy: Busy) -> float:
    cpus = [load.cpu for load in busy.now().values()]
    return (max(cpus) - min(cpus)) / max(cpus)


@pytest.mark.parametrize(
    ("of_node", "of_tablet"),
    [
        pytest.param({1: 1.0, 2: 1.0}, dict.fromkeys(range(0, 20, 2), 3.0), id="hot-tablets"),
        pytest.param({1: 1.9, 2: 1.0}, {}, id="slow-node"),
        pytest.param({1: 1.0, 2: 1.6, 3: 1.0}, dict.fromkeys(range(0, TABLETS, 3), 1.7), id="both"),
    ],
)
def test_processors_get_as_even_as_bytes_allow(
    of_node: dict[int, float], of_tablet: dict[int, float]
) -> None:
    busy = Busy(of_node, of_tablet)
    before = apart(busy)
    busy.rest()
    held = busy.carried.bytes_on().values()
    assert max(held) - min(held) <= GIB, "bytes come first"
    assert apart(busy) <= before


def test_a_node_whose_requests_cost_more_gives_some_away_for_bytes_alone() -> None:
    """Tablets with few requests come back for those with many: so bytes stay as they are."""
    busy = Busy({1: 1.0, 2: 1.0}, {})
    nodes = {}
    for node, factor in ((1, 2.0), (2, 1.0)):
        held = {
            right: TabletLoad(GIB, 200.0 if (at // 2) % 2 else 20.0)
            for at, right in enumerate(even_rights(TABLETS))
            if at % 2 == node - 1
        }
        nodes[NodeId(node)] = NodeLoad(CAPACITY, 2.0 * factor, {1: held})
    busy.carried.statistics = LoadStatistics().refreshed(nodes)
    assert busy.carried.statistics.costs == {1: pytest.approx(4 / 3), 2: pytest.approx(2 / 3)}
    busy.carried.forget()
    busy.carried.run()
    assert sorted(busy.carried.on_nodes().values()) == [20, 20]
    rates = {node: load.rate for node, load in busy.carried.statistics.nodes.items()}
    assert rates[NodeId(2)] == pytest.approx(2 * rates[NodeId(1)], rel=0.15)
    assert busy.carried.moved and {(move.source[0], move.target[0]) for move in busy.carried.moved} == {
        (1, 2),
        (2, 1),
    }


def said(cpu: float, rate: float) -> NodeLoad:
    return NodeLoad(100, cpu, {1: {5: TabletLoad(1, rate)}})


def test_what_says_nothing_of_requests_counts_for_nothing() -> None:
    for one, two in (
        (said(9.0, COST_RATE_MIN - 1), said(1.0, 1000.0)),
        (said(0.0, 1000.0), said(0.0, 1000.0)),
        (said(1.0, 1000.0), said(1.0 + COST_BAND, 1000.0)),
    ):
        known = LoadStatistics().refreshed({NodeId(1): one, NodeId(2): two})
        assert known.costs == {1: 1.0, 2: 1.0}
    far = LoadStatistics().refreshed({NodeId(1): said(0.1, 1000.0), NodeId(2): said(9.0, 1000.0)})
    assert far.costs == {1: 1 / COST_MAX, 2: pytest.approx(9.0 / 4.55)}


def test_work_that_does_not_last_is_no_news() -> None:
    node = NodeId(1)
    known = steadied({}, {node: said(1.0, 1000.0)})
    for cpu in (1.0 + COST_BAND, 1.0, 8.0, 8.0):
        known = steadied(known, {node: said(cpu, 1000.0)})
        assert known[node].cost == 0.001
    for _ in range(COST_ROUNDS):
        known = steadied(known, {node: said(1.1, 1000.0)})
        assert len(known[node].costs_said) <= COST_ROUNDS
    for _ in range(COST_ROUNDS // 2):
        known = steadied(known, {node: said(3.0, 1000.0)})
        assert known[node].cost == 0.001
    known = steadied(known, {node: said(3.0, 1000.0)})
    assert known[node].cost == 0.003


def test_what_a_node_did_while_it_served_nobody_is_forgotten_by_nobody() -> None:
    """Of a node that serves few for a while the last cost that is known stays."""
    node = NodeId(1)
    known = steadied({}, {node: said(1.0, 1000.0)})
    for _ in range(2 * COST_ROUNDS):
        known = steadied(known, {node: said(4.0, 10.0)})
    assert known[node].cost == 0.001 and known[node].cpu == 4.0
