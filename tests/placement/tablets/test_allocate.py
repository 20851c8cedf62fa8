"""Replicas of new tables: how even they are, and what cannot be placed."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from lockstep.placement.tablets.allocate import NotPlaceable, allocate
from lockstep.placement.tablets.load import GIB, Drain, Host, LoadStatistics, NodeLoad, TabletLoad
from lockstep.placement.tablets.shards import Replica
from lockstep.placement.witnesses import full_of
from lockstep.schema.model import Replication
from lockstep.values.ids import NodeId


def setting(**factors: int) -> Replication:
    return Replication("NetworkTopologyStrategy", tuple(sorted(factors.items())))


def hosts_of(*places: tuple[str, str, int]) -> list[Host]:
    return [Host(NodeId(at), dc, rack, shards) for at, (dc, rack, shards) in enumerate(places, 1)]


def measured(hosts: list[Host], capacity: dict[int, int] | None = None) -> LoadStatistics:
    return LoadStatistics(1, {h.node: NodeLoad((capacity or {}).get(h.node, 1000 * GIB)) for h in hosts})


def placed(found: list[tuple[Replica, ...]] | NotPlaceable) -> list[tuple[Replica, ...]]:
    assert not isinstance(found, NotPlaceable), found
    return found


@pytest.mark.parametrize("seed", range(40))
def test_fresh_allocation_is_even_by_capacity(seed: int) -> None:
    """Less than 13 % between the fullest and the emptiest node of a rack, no host twice, no rack twice."""
    rng = random.Random(seed)
    places = [("dc1", rack, rng.choice((4, 8))) for rack in "abc" for _ in range(rng.randint(1, 4))]
    hosts = hosts_of(*places)
    capacity = {host.node: rng.choice((1, 2)) * 1000 * GIB for host in hosts}
    found = placed(allocate(256, setting(dc1=3), hosts, measured(hosts, capacity), {}, {}))
    by_node = {host.node: host for host in hosts}
    for replicas in found:
        assert len({by_node[node].rack for node, _ in replicas}) == len(replicas) == 3
    counted = Counter(node for replicas in found for node, _ in replicas)
    shards = Counter(replica for replicas in found for replica in replicas)
    for rack in "abc":
        nodes = [host.node for host in hosts if host.rack == rack]
        full = [counted[node] / capacity[node] for node in nodes]
        assert (max(full) - min(full)) / max(full) < 0.13
    for host in hosts:
        on = [shards[(host.node, shard)] for shard in range(host.shards)]
        assert max(on) - min(on) <= 1


@pytest.mark.parametrize("seed", range(20))
def test_who_keeps_the_data_beside_witnesses_is_spread_by_capacity(seed: int) -> None:
    rng = random.Random(seed)
    dcs = {"dc1": (3, 1), "dc2": (rng.choice((2, 4)), 1), "dc3": (2, 2)}
    hosts = hosts_of(*[(dc, rng.choice("ab"), 2) for dc in dcs for _ in range(rng.randint(4, 6))])
    pairs = [(dc, factor) for dc, (factor, _) in dcs.items()] + [(dc, -one) for dc, (_, one) in dcs.items()]
    replication = Replication("NetworkTopologyStrategy", tuple(sorted(pairs)))
    plain = setting(**{dc: factor for dc, (factor, _) in dcs.items()})
    capacity = {host.node: rng.choice((1, 2)) * 1000 * GIB for host in hosts}
    found = placed(allocate(128, replication, hosts, measured(hosts, capacity), {}, {}))
    same = placed(allocate(128, plain, hosts, measured(hosts, capacity), {}, {}))
    assert [sorted(one) for one in found] == [sorted(one) for one in same], "roles move no replica"
    dc_of = {host.node: host.dc for host in hosts}
    fullest: list[dict[str, float]] = []
    for placement in (found, same):
        full = (full_of(replication, [node for node, _ in one], dc_of.__getitem__) for one in placement)
        keeping = Counter(node for nodes in full for node in nodes)
        assert not any(dc_of[node] == "dc3" for node in keeping)
        most: dict[str, float] = {}
        for dc in ("dc1", "dc2"):
            nodes = [node for node in capacity if dc_of[node] == dc]
            factor, witnesses = dcs[dc]
            assert sum(keeping[node] for node in nodes) == 128 * (factor - witnesses)
            most[dc] = max(keeping[node] / capacity[node] for node in nodes)
        fullest.append(most)
    for dc, most_ in fullest[0].items():
        assert most_ <= fullest[1][dc] * 1.02, "the node with most data has no more than by chance"


@pytest.mark.parametrize(("factor", "racks", "nodes"), [(2, 3, 2), (3, 2, 3), (5, 2, 4), (1, 4, 1)])
def test_replicas_lie_in_as_many_racks_as_there_are(factor: int, racks: int, nodes: int) -> None:
    hosts = hosts_of(*[("dc1", f"r{rack}", 2) for rack in range(racks) for _ in range(nodes)])
    found = placed(allocate(60, setting(dc1=factor), hosts, measured(hosts), {}, {}))
    rack_of = {host.node: host.rack for host in hosts}
    for replicas in found:
        assert len({node for node, _ in replicas}) == factor
        in_rack = Counter(rack_of[node] for node, _ in replicas)
        assert max(in_rack.values()) - min([in_rack[f"r{rack}"] for rack in range(racks)]) <= 1
    counted = Counter(node for replicas in found for node, _ in replicas)
    assert max(counted.values()) - min(counted.values()) <= 1


def test_factors_of_data_centres_and_lists_of_racks() -> None:
    hosts = hosts_of(*[(dc, rack, 1) for dc in ("dc1", "dc2") for rack in "abc" for _ in range(2)])
    found = placed(allocate(12, setting(dc1=2, dc2=1), hosts, measured(hosts), {}, {"dc1": ["c", "a"]}))
    place = {host.node: (host.dc, host.rack) for host in hosts}
    for replicas in found:
        places = sorted(place[node] for node, _ in replicas)
        assert places[:2] == [("dc1", "a"), ("dc1", "c")] and places[2][0] == "dc2" and len(places) == 3


def test_a_data_centre_with_factor_0_has_no_replicas_and_needs_no_nodes() -> None:
    hosts = hosts_of(*[(dc, "a", 1) for dc in ("dc1", "dc2") for _ in range(2)])
    for factors in ({"dc1": 2, "dc2": 0}, {"dc0": 0, "dc1": 2}):
        found = placed(allocate(4, setting(**factors), hosts, measured(hosts), {}, {"dc2": ["x"]}))
        assert [sorted(node for node, _ in replicas) for replicas in found] == [[1, 2]] * 4


def test_what_others_have_decides_between_equals() -> None:
    hosts = hosts_of(("dc1", "a", 2), ("dc1", "a", 2))
    full = NodeLoad(1000 * GIB, 0.0, {7: {5: TabletLoad(500 * GIB)}})
    statistics = LoadStatistics(1, {NodeId(1): full, NodeId(2): NodeLoad(1000 * GIB)})
    found = placed(allocate(3, setting(dc1=1), hosts, statistics, {NodeId(2): {0: 4}}, {}))
    assert found == [((2, 1),), ((1, 0),), ((2, 0),)], "evenly, and the emptier node and shard first"


@pytest.mark.parametrize(
    ("factors", "lists", "reason"),
    [
        ({"dc1": 3}, {}, "data centre dc1 has 2 nodes"),
        ({"dc2": 1}, {}, "data centre dc2 has 0 nodes"),
        ({"dc1": 2}, {"dc1": ["a"]}, "has 1 names, not 2"),
        ({"dc1": 2}, {"dc1": ["a", "a"]}, "has 2 names, not 2 different ones"),
        ({"dc1": 2}, {"dc1": ["a", "x"]}, "no node of rack x"),
        ({"dc1": 2}, {"dc1": ["a", "b"]}, "no node of rack b"),
    ],
)
def test_what_cannot_be_placed(factors: dict[str, int], lists: dict[str, list[str]], reason: str) -> None:
    hosts = hosts_of(("dc1", "a", 1), ("dc1", "a", 1), ("dc1", "b", 1), ("dc1", "b", 1))
    hosts[2] = Host(NodeId(3), "dc1", "b", drain=Drain.LEAVE)
    statistics = measured(hosts[:3])
    found = allocate(4, setting(**factors), hosts, statistics, {}, lists)
    assert isinstance(found, NotPlaceable) and reason in found.reason


def test_tablets_need_data_centres() -> None:
    hosts = hosts_of(("dc1", "a", 1))
    found = allocate(1, Replication("SimpleStrategy", (("", 1),)), hosts, measured(hosts), {}, {})
    assert isinstance(found, NotPlaceable) and "NetworkTopologyStrategy" in found.reason


def test_nodes_that_are_down_or_excluded_receive_nothing() -> None:
    hosts = hosts_of(*[("dc1", "a", 1)] * 3)
    hosts[0] = Host(NodeId(1), "dc1", "a", is_up=False)
    hosts[1] = Host(NodeId(2), "dc1", "a", is_excluded=True)
    found = placed(allocate(4, setting(dc1=1), hosts, measured(hosts), {}, {}))
    assert set(found) == {((3, 0),)}
