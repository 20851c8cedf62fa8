"""What a person is told of a tablet."""

from __future__ import annotations

from lockstep.placement.tablets.balancer import plan
from lockstep.placement.tablets.explain import explain
from lockstep.placement.tablets.load import GIB, Drain, Host, LoadStatistics
from lockstep.placement.tablets.map import TabletMap, even_rights, map_of
from lockstep.placement.tablets.moves import Running
from lockstep.placement.tablets.resize import Resize, ResizeKind
from lockstep.placement.tablets.target import BalancedTable, Cluster
from lockstep.values.ids import NodeId

from .clusters import hosts_of, measured, setting


def all_on(node: int, count: int = 4) -> TabletMap:
    return map_of(1, setting(dc1=1), [(right, ((NodeId(node), 0),)) for right in even_rights(count)], 1)


def told(cluster: Cluster, right: int) -> str:
    return "\n".join(explain(cluster, plan(cluster)[0], 1, right))


def test_a_tablet_that_moves() -> None:
    hosts = hosts_of(*[("dc1", "a", 1)] * 2)
    one = all_on(1, 12)
    cluster = Cluster(
        hosts, [BalancedTable(one)], measured(hosts, [one], capacity={1: 100 * GIB, 2: 100 * GIB})
    )
    first, _ = plan(cluster)
    now, later = first.moves[0].right, first.left[0].right
    assert "a replica is on node 1, shard 0, which is 12.0% full" in told(cluster, now)
    assert "moves now: from node 1, shard 0, to node 2, shard 0: its node is fuller" in told(cluster, now)
    assert "(1.00 GiB, about 21 s)" in told(cluster, now) and "moves later" in told(cluster, later)
    running = Cluster(hosts, cluster.tables, cluster.statistics, [Running(first.moves[0])])
    assert "it is on its way" in told(running, now)
    assert explain(cluster, first, 1, 77) == ["there is no tablet of group 1 that ends at 77"]
    assert explain(cluster, first, 9, now)[0].startswith("there is no tablet")


def test_a_tablet_that_stays() -> None:
    hosts = hosts_of(*[("dc1", "a", 1)] * 3)
    rights = even_rights(3)
    one = map_of(1, setting(dc1=1), [(right, ((NodeId(at), 0),)) for at, right in enumerate(rights, 1)], 1)
    statistics = measured(hosts, [one])
    even = Cluster(hosts, [BalancedTable(one)], statistics)
    assert "it stays on node 1: data centre dc1 is even (node 2 is 0.0% full" in told(even, rights[0])
    two = all_on(1)
    known = measured(hosts, [two])
    right = even_rights(4)[0]
    cases = {
        "balance is off for the cluster": Cluster(hosts, [BalancedTable(two)], known, is_on=False),
        "waits for moves to end": Cluster(hosts, [BalancedTable(two, is_finalising=True)], known),
        "balance is off for its table": Cluster(hosts, [BalancedTable(two, is_on=False)], known),
    }
    for text, cluster in cases.items():
        assert text in told(cluster, right)
    held = Cluster(hosts, [BalancedTable(one)], statistics, held={(1, rights[0]): "a repair"})
    assert "it stays: a repair has it" in told(held, rights[0])
    merging = BalancedTable(two, resize=Resize(ResizeKind.MERGE, 1))
    assert "it is to be merged with" in told(Cluster(hosts, [merging], known), right)


def test_nodes_that_cannot_hand_over() -> None:
    hosts = hosts_of(*[("dc1", "a", 1)] * 2)
    one = all_on(1)
    known = measured(hosts, [one])
    right = even_rights(4)[0]
    without = LoadStatistics(1, {NodeId(2): known.nodes[NodeId(2)]})
    unmeasured = Cluster(hosts, [BalancedTable(one)], without)
    assert "node 1 has no statistics, and hands nothing over" in told(unmeasured, right)
    down = [Host(NodeId(1), "dc1", "a", is_up=False), hosts[1]]
    assert "node 1 is down" in told(Cluster(down, [BalancedTable(one)], known), right)
    leaving = [Host(NodeId(1), "dc1", "a", 1, Drain.LEAVE, is_excluded=True), hosts[1]]
    failed = told(Cluster(leaving, [BalancedTable(one)], known), right)
    assert "a drain of node 1 cannot be: the node is excluded" in failed
    waiting = [Host(NodeId(1), "dc1", "a", 1, Drain.LEAVE), hosts[1]]
    text = told(
        Cluster(waiting, [BalancedTable(one)], LoadStatistics(1, {NodeId(1): known.nodes[NodeId(1)]})), right
    )
    assert "it stays: data centre dc1: node 2 has no statistics" in text
    assert "which is not known" in told(Cluster([hosts[1]], [BalancedTable(one)], known), right)
