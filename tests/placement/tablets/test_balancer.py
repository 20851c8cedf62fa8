"""Plans carried out to their end: what they reach, what they never do, and that they end."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.placement.tablets.balancer import plan
from lockstep.placement.tablets.load import GIB, Drain, Host, LoadStatistics, NodeLoad, TabletLoad
from lockstep.placement.tablets.map import TabletMap, even_rights, map_of
from lockstep.placement.tablets.moves import (
    BATCH_BYTES,
    READS_MAX,
    WHOLE,
    Move,
    MoveKind,
    Running,
    Why,
    duration_ms,
)
from lockstep.placement.tablets.target import BalancedTable, Cluster
from lockstep.values.ids import NodeId

from .clusters import CAPACITY, Carried, hosts_of, measured, new_table, scattered, setting


def all_on(group: int, count: int, *replicas: tuple[int, int]) -> TabletMap:
    """A table with all its tablets on these (node, shard)."""
    placed = tuple((NodeId(node), shard) for node, shard in replicas)
    dcs = setting(dc1=len(replicas))
    return map_of(group, dcs, [(right, placed) for right in even_rights(count)], 1)


def tables(*maps: TabletMap) -> list[BalancedTable]:
    return [BalancedTable(one) for one in maps]


def shard_imbalance(carried: Carried) -> int:
    on = carried.on_shards()
    return max(
        max([on[(h.node, s)] for s in range(h.shards)]) - min([on[(h.node, s)] for s in range(h.shards)])
        for h in carried.hosts
    )


# What is reached


@pytest.mark.parametrize(("nodes", "shards", "count"), [(2, 1, 16), (4, 2, 64), (5, 3, 45), (3, 4, 24)])
def test_equal_nodes_end_with_equal_counts(nodes: int, shards: int, count: int) -> None:
    hosts = hosts_of(*[("dc1", "a", shards)] * nodes)
    one = all_on(1, count, (1, 0))
    carried = Carried(hosts, tables(one), measured(hosts, [one]))
    carried.run()
    carried.check()
    on = carried.on_nodes()
    assert max(on.values()) - min([on[host.node] for host in hosts]) <= (1 if count % nodes else 0)
    assert shard_imbalance(carried) <= 1


def test_scenario_16_an_empty_node_is_filled_by_little_more_than_what_goes_there() -> None:
    hosts = hosts_of(*[("dc1", "a", 2)] * 4)
    maps = [new_table(group, 32, setting(dc1=2), hosts[:3], measured(hosts[:3])) for group in (1, 2, 3)]
    carried = Carried(hosts, tables(*maps), measured(hosts, maps))
    carried.run()
    on = carried.on_nodes()
    assert max(on.values()) - min(on.values()) == 0 and sum(on.values()) == 192
    between = [move for move in carried.moved if move.kind is MoveKind.MIGRATION]
    assert len([move for move in between if move.target[0] == 4]) <= 50 and len(between) <= 50, "48 have to"


def test_257_tablets_beside_255_do_not_move() -> None:
    hosts = hosts_of(("dc1", "a", 2))
    rights = even_rights(512)
    one = map_of(
        1, setting(dc1=1), [(right, ((NodeId(1), int(at >= 257)),)) for at, right in enumerate(rights)], 1
    )
    carried = Carried(hosts, tables(one), measured(hosts, [one]))
    assert carried.run() == 0 and not carried.moved
    worse = one.with_replicas({right: ((NodeId(1), 0),) for right in rights[257:262]}, 2)
    carried = Carried(hosts, tables(worse), measured(hosts, [worse]))
    carried.run()
    assert carried.moved, "262 beside 250 do"


@pytest.mark.parametrize("seed", range(6))
def test_a_cluster_of_unlike_nodes_ends_within_one_percent(seed: int) -> None:
    rng = random.Random(seed)
    hosts = hosts_of(*[("dc1", rack, 4) for rack in "abc" for _ in range(3)])
    capacity = {host.node: rng.choice((1, 2, 4)) * CAPACITY for host in hosts}
    maps = [new_table(group, 256, setting(dc1=3), hosts, measured(hosts)) for group in (1, 2)]
    sizes = {
        (one.id, tablet.right): TabletLoad(rng.randrange(GIB // 2, 3 * GIB // 2))
        for one in maps
        for tablet in one.tablets()
    }
    carried = Carried(hosts, tables(*maps), measured(hosts, maps, sizes, capacity))
    carried.run()
    carried.check()
    held = carried.bytes_on()
    for rack in "abc":
        full = [held[host.node] / capacity[host.node] for host in hosts if host.rack == rack]
        assert (max(full) - min(full)) / max(full) < 0.01


def test_scenario_17_racks_that_nothing_happened_to_stay_as_they_are() -> None:
    hosts = hosts_of(*[("dc1", rack, 2) for rack in "abc" for _ in range(2)])
    one = new_table(1, 64, setting(dc1=3), hosts, measured(hosts))
    more = [*hosts, Host(NodeId(9), "dc1", "b", 2)]
    carried = Carried(more, tables(one), measured(more, [one]))
    carried.run()
    rack_of = {host.node: host.rack for host in more}
    assert carried.moved and {rack_of[move.target[0]] for move in carried.moved} == {"b"}
    assert all(rack_of[move.source[0]] == "b" for move in carried.moved)
    before = [[one for one in tablet.replicas if rack_of[one[0]] != "b"] for tablet in one.tablets()]
    tablets = carried.maps[1].tablets()
    assert before == [[one for one in tablet.replicas if rack_of[one[0]] != "b"] for tablet in tablets]


def test_each_table_is_spread_for_itself() -> None:
    hosts = hosts_of(*[("dc1", "a", 1)] * 3)
    one, two = all_on(1, 30, (1, 0)), all_on(2, 30, (2, 0))
    three = all_on(3, 30, (3, 0))
    carried = Carried(hosts, tables(one, two, three), measured(hosts, [one, two, three]))
    carried.run()
    for group in (1, 2, 3):
        on = carried.on_nodes(group)
        assert sorted(on.values()) == [10, 10, 10], "nodes were even, the tables were not"


def test_requests_are_spread_where_bytes_are_even() -> None:
    hosts = hosts_of(*[("dc1", "a", 1)] * 2)
    rights = even_rights(40)
    one = map_of(
        1, setting(dc1=1), [(right, ((NodeId(1 + at % 2), 0),)) for at, right in enumerate(rights)], 1
    )
    sizes = {(1, right): TabletLoad(GIB, 100.0 if at % 2 else 1.0) for at, right in enumerate(rights)}
    carried = Carried(hosts, tables(one), measured(hosts, [one], sizes))
    carried.run()
    assert sorted(carried.on_nodes().values()) == [20, 20]
    rates = Counter[int]()
    for tablet in carried.maps[1].tablets():
        rates[tablet.nodes[0]] += int(sizes[1, tablet.right].rate)
    assert max(rates.values()) - min(rates.values()) <= 0.1 * max(rates.values())


# Drains


@pytest.mark.parametrize("drain", [Drain.LEAVE, Drain.REMOVE])
@pytest.mark.parametrize("is_on", [True, False])
def test_a_drained_node_ends_at_nothing(drain: Drain, is_on: bool) -> None:
    hosts = hosts_of(*[("dc1", rack, 2) for rack in "ab" for _ in range(3)])
    maps = [new_table(group, 40, setting(dc1=2), hosts, measured(hosts)) for group in (1, 2)]
    gone = drain is Drain.REMOVE
    hosts[1] = Host(NodeId(2), "dc1", "a", 2, drain, is_up=not gone, is_excluded=gone)
    statistics = measured([host for host in hosts if host.is_up], maps)
    carried = Carried(hosts, [BalancedTable(one, is_on=is_on) for one in maps], statistics)
    carried.is_on = is_on
    carried.run()
    carried.check()
    assert carried.on_nodes()[NodeId(2)] == 0
    kinds = {move.kind for move in carried.moved if move.source[0] == 2}
    assert kinds == {MoveKind.REBUILD if gone else MoveKind.MIGRATION}
    if not is_on:
        assert {move.source[0] for move in carried.moved} == {2}, "drains ignore that balance is off"


def test_drains_come_before_everything() -> None:
    hosts = hosts_of(*[("dc1", "a", 1)] * 4)
    one, two = all_on(1, 60, (1, 0)), all_on(2, 6, (2, 0))
    hosts[1] = Host(NodeId(2), "dc1", "a", 1, Drain.LEAVE)
    carried = Carried(hosts, tables(one, two), measured(hosts, [one, two]))
    first = carried.step()
    left = [move.why for move in first.left]
    assert [move.why for move in first.moves][:2] == [Why.DRAIN] * 2, "as many as its shard reads for"
    assert left == sorted(left) and left.count(Why.DRAIN) == 4


def test_nodes_of_two_racks_drain_at_the_same_time() -> None:
    hosts = hosts_of(*[("dc1", rack, 1) for rack in "ab" for _ in range(3)])
    one = new_table(1, 60, setting(dc1=2), hosts, measured(hosts))
    hosts[0] = Host(NodeId(1), "dc1", "a", 1, Drain.LEAVE)
    hosts[3] = Host(NodeId(4), "dc1", "b", 1, Drain.LEAVE)
    carried = Carried(hosts, tables(one), measured(hosts, [one]), slow=2)
    assert {move.source[0] for move in carried.step().moves} == {1, 4}
    carried.run()
    assert carried.on_nodes()[NodeId(1)] == carried.on_nodes()[NodeId(4)] == 0


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ("last of its rack", "rack b of data centre dc1 has no place for it: no node can receive"),
        ("too few nodes", "has a replica of it"),
        ("full", "is full"),
        ("excluded", "excluded and can hand nothing over"),
    ],
)
def test_a_drain_that_cannot_be_names_the_tablet_and_the_reason(case: str, reason: str) -> None:
    racks = "aabc" if case == "last of its rack" else "aaab"
    hosts = hosts_of(*[("dc1", rack, 1) for rack in racks])
    factor = {"last of its rack": 3, "too few nodes": 4}.get(case, 2)
    one = new_table(1, 8, setting(dc1=factor), hosts, measured(hosts))
    leaving = 2 if case == "last of its rack" else 0
    was = hosts[leaving]
    hosts[leaving] = Host(was.node, "dc1", was.rack, 1, Drain.LEAVE, is_excluded=case == "excluded")
    capacity = {host.node: 4 * GIB for host in hosts} if case == "full" else None
    statistics = measured(hosts, [one], capacity=capacity)
    found, _ = plan(Cluster(hosts, tables(one), statistics))
    assert [(one.node, one.group) for one in found.failures] == [(was.node, 1)]
    assert reason in found.failures[0].reason and one.ending(found.failures[0].right) is not None
    assert not [move for move in (*found.moves, *found.left) if move.source[0] == was.node]


def test_a_drain_that_cannot_be_does_not_hold_others() -> None:
    hosts = hosts_of(*[("dc1", rack, 1) for rack in "aaab"])
    one = new_table(1, 30, setting(dc1=2), hosts, measured(hosts))
    hosts[0] = Host(NodeId(1), "dc1", "a", 1, Drain.LEAVE)
    hosts[3] = Host(NodeId(4), "dc1", "b", 1, Drain.LEAVE)
    found, _ = plan(Cluster(hosts, tables(one), measured(hosts, [one])))
    assert [failure.node for failure in found.failures] == [4]
    assert {move.source[0] for move in (*found.moves, *found.left) if move.why is Why.DRAIN} == {1}


# Statistics


def test_scenario_18_a_live_node_without_statistics_is_neither_source_nor_target() -> None:
    hosts = hosts_of(*[("dc1", "a", 1)] * 3)
    one = all_on(1, 24, (1, 0))
    two = all_on(2, 12, (2, 0))
    known = measured(hosts, [one, two])
    statistics = LoadStatistics(1, {node: load for node, load in known.nodes.items() if node != 2})
    carried = Carried(hosts, tables(one, two), statistics)
    carried.run()
    assert all(2 not in (move.source[0], move.target[0]) for move in carried.moved)
    assert sorted(carried.on_nodes(1).items()) == [(1, 12), (3, 12)]
    carried.statistics = measured(hosts, carried.maps.values(), number=2)  # type: ignore[arg-type]
    carried.run()
    assert set(carried.on_nodes().values()) == {12}, "the next round includes it"


def test_missing_statistics_hold_a_drain_and_the_node_is_named() -> None:
    hosts = hosts_of(*[("dc1", "a", 1)] * 3)
    one = all_on(1, 24, (1, 0))
    hosts[0] = Host(NodeId(1), "dc1", "a", 1, Drain.LEAVE)
    known = measured(hosts, [one])
    without = LoadStatistics(1, {node: load for node, load in known.nodes.items() if node != 3})
    found, target = plan(Cluster(hosts, tables(one), without))
    assert not found.moves and "node 3 has no statistics, so node 1 is not drained" in found.waits[0]
    found, _ = plan(Cluster(hosts, tables(one), measured(hosts, [one], number=2)), target)
    assert found.moves and not found.waits
    hosts[0] = Host(NodeId(1), "dc1", "a", 1, Drain.REMOVE, is_up=False, is_excluded=True)
    gone = LoadStatistics(3, {node: load for node, load in known.nodes.items() if node != 1})
    found, _ = plan(Cluster(hosts, tables(one), gone))
    assert found.moves and not found.waits, "what a removed node has is known from nobody, and need not be"


# What is never done


def test_nothing_is_moved_where_balance_is_off() -> None:
    hosts = hosts_of(*[("dc1", "a", 2)] * 3)
    one, two = all_on(1, 24, (1, 0)), all_on(2, 24, (1, 0))
    statistics = measured(hosts, [one, two])
    found, _ = plan(Cluster(hosts, tables(one, two), statistics, is_on=False))
    assert found.is_empty
    still = [BalancedTable(one, is_finalising=True), BalancedTable(two)]
    carried = Carried(hosts, still, statistics)
    carried.run()
    assert {move.group for move in carried.moved} == {2}, "of its own table alone"
    carried = Carried(hosts, [BalancedTable(one, is_on=False), BalancedTable(two)], statistics)
    carried.run()
    assert {move.group for move in carried.moved} == {2}


def test_a_tablet_on_its_way_is_not_moved_again_and_counts_where_it_goes() -> None:
    hosts = hosts_of(*[("dc1", "a", 1)] * 2)
    one = all_on(1, 4, (1, 0))
    first, _ = plan(Cluster(hosts, tables(one), measured(hosts, [one])))
    assert len(first.moves) == 2
    running = [Running(move) for move in first.moves]
    again, _ = plan(Cluster(hosts, tables(one), measured(hosts, [one]), running))
    assert again.is_empty
    held = {(1, move.right): "repair" for move in first.moves}
    other, _ = plan(Cluster(hosts, tables(one), measured(hosts, [one]), held=held))
    assert not {(move.group, move.right) for move in other.moves} & set(held)


def test_slots_bound_what_a_shard_reads_and_writes_at_once() -> None:
    hosts = hosts_of(("dc1", "a", 1), ("dc1", "a", 2), ("dc1", "a", 2))
    one = all_on(1, 60, (1, 0))
    first, target = plan(Cluster(hosts, tables(one), measured(hosts, [one])))
    assert len(first.moves) == 2, "one shard gives all, and reads for two moves"
    running = [Running(first.moves[0], is_streaming=False), Running(first.moves[1])]
    second, _ = plan(Cluster(hosts, tables(one), measured(hosts, [one]), running), target)
    assert len(second.moves) == 1, "what does not stream any more has left its slot"


def test_small_tablets_go_together() -> None:
    hosts = hosts_of(*[("dc1", "a", 1)] * 2)
    one = all_on(1, 400, (1, 0))
    first, _ = plan(Cluster(hosts, tables(one), measured(hosts, [one], each=1000)))
    assert len(first.moves) == READS_MAX, "each weighs the least there is"
    heavy, _ = plan(Cluster(hosts, tables(one), measured(hosts, [one], each=BATCH_BYTES // 2)))
    assert len(heavy.moves) == 4
    assert READS_MAX == 2 * WHOLE


def test_the_racks_of_a_list_are_kept() -> None:
    hosts = hosts_of(*[("dc1", rack, 1) for rack in "aabbcc"])
    placed = [(right, ((NodeId(1), 0), (NodeId(3), 0))) for right in even_rights(32)]
    one = map_of(1, setting(dc1=2), placed, 1)
    carried = Carried(hosts, [BalancedTable(one, {"dc1": ("a", "b")})], measured(hosts, [one]))
    carried.run()
    assert carried.on_nodes() == {1: 16, 2: 16, 3: 16, 4: 16}
    free = Carried(hosts, tables(one), measured(hosts, [one]))
    free.run()
    free.check()
    assert max(free.on_nodes().values()) - min(free.on_nodes().values()) <= 1, "else all racks share it"
    rack_of = {host.node: host.rack for host in hosts}
    assert all(len({rack_of[n] for n in t.nodes}) == 2 for t in free.maps[1].tablets())


def test_what_moves_take_is_predicted() -> None:
    hosts = hosts_of(*[("dc1", "a", 1)] * 2)
    one = all_on(1, 8, (1, 0))
    found, _ = plan(Cluster(hosts, tables(one), measured(hosts, [one])))
    assert found.bytes == 4 * GIB
    assert found.remaining_ms(GIB) == 4 * 1000 + 2 * 500
    assert duration_ms([]) == 0


# That it ends, for clusters of all kinds

CLUSTERS = st.tuples(
    st.lists(st.integers(1, 4), min_size=1, max_size=3),  # nodes of each rack
    st.integers(1, 4),  # shards
    st.lists(st.integers(1, 48), min_size=1, max_size=4),  # tablets of each table
    st.integers(1, 3),  # factor
    st.integers(0, 1 << 30),
)


@settings(max_examples=60, deadline=None)
@given(CLUSTERS, st.integers(0, 3), st.integers(1, 3), st.booleans())
def test_plan_sequences_always_end(
    drawn: tuple[list[int], int, list[int], int, int], forgets: int, slow: int, drains: bool
) -> None:
    """Within a bound, with hosts unique and racks respected, an empty plan behind, and also when another one
    goes on planning some times."""
    nodes, shards, counts, factor, seed = drawn
    rng = random.Random(seed)
    hosts = hosts_of(*[("dc1", f"r{rack}", shards) for rack, count in enumerate(nodes) for _ in range(count)])
    factor = min(factor, len(hosts))
    maps = [scattered(at, count, setting(dc1=factor), hosts, rng) for at, count in enumerate(counts, 1)]
    sizes = {
        (one.id, tablet.right): TabletLoad(
            rng.choice((0, GIB, rng.randrange(9 * GIB))), rng.choice((0.0, 50.0))
        )
        for one in maps
        for tablet in one.tablets()
    }
    capacity = {host.node: rng.choice((1, 1, 3)) * CAPACITY for host in hosts}
    if drains:
        hosts[-1] = Host(hosts[-1].node, "dc1", hosts[-1].rack, shards, Drain.LEAVE)
    carried = Carried(hosts, tables(*maps), measured(hosts, maps, sizes, capacity), slow=slow)
    racks = {host.node: host.rack for host in hosts}
    most = {(one.id, t.right): max_of_a_rack(t.nodes, racks) for one in maps for t in one.tablets()}
    for _ in range(forgets):
        carried.step()
        carried.forget()
    carried.run()
    carried.check()
    for one in carried.maps.values():
        for tablet in one.tablets():
            assert max_of_a_rack(tablet.nodes, racks) <= most[one.id, tablet.right]
    final = plan(carried.cluster())[0]
    assert final.is_empty, "also for whoever has not planned before"
    if drains and not final.failures:
        assert carried.on_nodes()[hosts[-1].node] == 0


def max_of_a_rack(nodes: tuple[NodeId, ...], racks: dict[NodeId, str]) -> int:
    return max(Counter(racks[node] for node in nodes).values())


def test_a_move_says_what_comes_of_it() -> None:
    move = Move(MoveKind.MIGRATION, Why.BALANCE, 1, 5, (NodeId(1), 0), (NodeId(9), 3), 0)
    assert move.after(((NodeId(2), 1), (NodeId(1), 0))) == ((2, 1), (9, 3)) and move.weight() == 1
    assert NodeLoad(1).tablets == {}
