"""What plans do where they have nothing to choose, or stop before everything is even."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from lockstep.placement.tablets import packing
from lockstep.placement.tablets.allocate import NotPlaceable
from lockstep.placement.tablets.balancer import plan, refusal
from lockstep.placement.tablets.load import GIB, Drain, TabletLoad
from lockstep.placement.tablets.map import even_rights, map_of
from lockstep.placement.tablets.moves import Move, MoveKind, Running, Why
from lockstep.placement.tablets.packing import RATE_UNITS, Packing, Piece, Spot
from lockstep.placement.tablets.recount import Nodes, Places, one_less, one_more
from lockstep.placement.tablets.target import BalancedTable, Cluster, replicas_after
from lockstep.values.ids import NodeId

from .clusters import Carried, hosts_of, measured, setting
from .test_balancer import all_on

ONE, TWO, THREE = NodeId(1), NodeId(2), NodeId(3)


def migration(right: int, source: int, target: int, group: int = 1) -> Move:
    return Move(MoveKind.MIGRATION, Why.BALANCE, group, right, (NodeId(source), 0), (NodeId(target), 0), GIB)


# Plans


def test_what_is_left_of_a_target_and_cannot_be_any_more_is_dropped() -> None:
    hosts = hosts_of(*[("dc1", "a", 2)] * 3)
    one = map_of(1, setting(dc1=2), [(right, ((ONE, 0), (TWO, 1))) for right in even_rights(8)], 1)
    cluster = Cluster(hosts, [BalancedTable(one)], measured(hosts, [one]))
    _, target = plan(cluster)
    first, second, third, fourth, *_ = even_rights(8)
    wanted = (
        migration(first - 1, 1, 3),  # no tablet ends there
        migration(second, 3, 1),  # node 3 has none of it
        migration(third, 1, 2),  # node 2 has one
        migration(fourth, 1, 3),
    )
    found, after = plan(cluster, replace(target, left=wanted))
    assert found.moves == (wanted[3],) and found.left == () and after.left == ()


def test_why_a_move_cannot_be() -> None:
    (tablet,) = all_on(1, 1, (1, 0), (2, 1)).tablets()
    told = [
        ((THREE, 0), (ONE, 0), "node 3, shard 0, has no replica of it"),
        ((ONE, 1), (THREE, 0), "node 1, shard 1, has no replica of it"),
        ((ONE, 0), (TWO, 0), "node 2 has a replica of it already"),
        ((ONE, 0), (ONE, 0), "it is there already"),
        ((ONE, 0), (ONE, 1), None),
        ((ONE, 0), (THREE, 0), None),
    ]
    for source, target, reason in told:
        assert refusal(replace(migration(tablet.right, 1, 3), source=source, target=target), tablet) == reason


def test_moves_of_tablets_that_are_gone_count_for_nothing() -> None:
    hosts = hosts_of(*[("dc1", "a", 1)] * 3)
    one = all_on(1, 2, (1, 0))
    first, second = even_rights(2)
    running = [
        Running(move) for move in (migration(first, 1, 2), migration(5, 1, 2), migration(first, 1, 2, 9))
    ]
    cluster = Cluster(hosts, [BalancedTable(one)], measured(hosts, [one]), running)
    assert replicas_after(cluster) == {(1, first): ((TWO, 0),)}
    found, _ = plan(cluster)
    assert not [move for move in (*found.moves, *found.left) if move.right != second]


def test_a_replica_of_a_list_of_racks_stays_in_its_rack() -> None:
    """Beside a table that has no list, so that a data centre is planned as a whole."""
    hosts = hosts_of(("dc1", "a", 1), ("dc1", "b", 1), ("dc1", "b", 1))
    listed, other = all_on(1, 8, (1, 0)), all_on(2, 9, (1, 0))
    tables = [BalancedTable(listed, lists={"dc1": ["a"]}), BalancedTable(other)]
    carried = Carried(hosts, tables, measured(hosts, [listed, other]))
    carried.run()
    assert set(carried.on_nodes(1)) == {1} and carried.moved, "the other one makes room"
    hosts[0] = replace(hosts[0], drain=Drain.LEAVE)
    found, _ = plan(Cluster(hosts, tables, measured(hosts, [listed, other])))
    (failure,) = found.failures
    assert (failure.node, failure.group) == (1, 1)
    assert "node 2, 3 is in another rack than the one that is to have this replica" in failure.reason
    free = [BalancedTable(listed), BalancedTable(other)]
    assert not plan(Cluster(hosts, free, measured(hosts, [listed, other])))[0].failures


# Bins


def pieces_of(table: int, count: int, home: int, size: int = 100, rate: int = 0) -> list[Piece]:
    return [Piece(Spot(table, right), size, size, rate, home, 0) for right in range(count)]


def packed(bins: int, *pieces: Piece) -> Packing:
    made = Packing([1000.0] * bins, lambda piece, to: True, [1.0] * bins)
    for piece in pieces:
        made.add(piece)
    return made


def test_requests_are_evened_out_in_so_many_steps_for_each_bin(monkeypatch: pytest.MonkeyPatch) -> None:
    def uneven() -> Packing:
        hot = pieces_of(1, 40, 0, rate=1000 * RATE_UNITS)
        return packed(2, *hot, *pieces_of(1, 40, 1))

    whole = uneven()
    whole._level_rates()
    assert whole.steps == 38, "19 exchanges of a hot piece for a cold one"
    assert not whole.are_rates_apart()
    monkeypatch.setattr(packing, "_COOLINGS_MAX", 3)
    bounded = uneven()
    bounded._level_rates()
    assert bounded.steps == 12 and bounded.are_rates_apart()


def test_tables_are_spread_in_so_many_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    made = packed(2, *pieces_of(1, 4, 0), *pieces_of(2, 4, 1))
    seen: list[int] = []
    steps = 1

    def spread(table: int) -> int:
        seen.append(table)
        return steps

    monkeypatch.setattr(made, "_spread_table", spread)
    made._spread()
    assert seen == [1, 2] * packing._ROUNDS_MAX
    seen.clear()
    steps = 0
    made._spread()
    assert seen == [1, 2], "a round without a step is the last"


def test_bins_that_were_tried_in_vain_leave_the_next_ones() -> None:
    """The widest pair of bins that differ, by what was tried; none where those are alike."""
    made = packed(4, *pieces_of(1, 8, 0), *pieces_of(1, 4, 1), *pieces_of(1, 2, 2))
    assert made._widest({}) == (0, 3)
    tried = {(0, 3): None}
    assert made._widest(tried) == (0, 2)
    tried[0, 2] = None
    assert made._widest(tried) in ((0, 1), (1, 3)), "both differ by four"
    tried |= {(0, 1): None, (1, 3): None, (1, 2): None}
    assert made._widest(tried) == (2, 3)
    tried[2, 3] = None
    assert made._widest(tried) is None


# One replica more, or less


PLACES = Places(
    dc={NodeId(node): "dc1" if node < 6 else "dc2" for node in range(1, 8)},
    rack={NodeId(node): rack for node, rack in zip(range(1, 8), "aabbcab", strict=True)},
    open_to=tuple(NodeId(node) for node in (1, 2, 3, 4, 6, 7)),
)


def nodes(*numbers: int) -> Nodes:
    return tuple(map(NodeId, numbers))


def test_one_more_goes_to_a_rack_that_is_to_have_one_and_has_none() -> None:
    assert one_more([nodes(1)], "dc1", PLACES, {}) == [nodes(1, 3)], "the rack with fewest"
    assert one_more([nodes(1)], "dc1", PLACES, {THREE: 5}) == [nodes(1, 4)], "the node with fewest"
    assert one_more([nodes(3)], "dc1", PLACES, {}, ["b", "a"]) == [nodes(3, 1)]
    assert one_more([nodes(1, 3)], "dc1", PLACES, {}, ["a", "b"]) == [nodes(1, 3, 2)], "none misses"
    lacking = one_more([nodes(3), nodes(1, 3)], "dc1", PLACES, {}, ["a", "b", "c", "d"])
    assert isinstance(lacking, NotPlaceable)
    assert lacking.reason == (
        "no node of rack c or d of data centre dc1 can get one more replica of a tablet that nodes 1, 3 have"
    )
    full = one_more([nodes(1, 2, 3, 4)], "dc1", PLACES, {})
    assert isinstance(full, NotPlaceable)
    assert full.reason == (
        "no node of data centre dc1 can get one more replica of a tablet that nodes 1, 2, 3, 4 have"
    )


def test_one_less_leaves_each_rack_of_the_list_its_replica() -> None:
    assert one_less([nodes(1, 2, 3)], "dc1", PLACES, {}, ["a", "b"]) == [nodes(1, 3)]
    assert one_less([nodes(1, 3, 5)], "dc1", PLACES, {}, ["a", "b"]) == [nodes(1, 3)]
    assert one_less([nodes(1, 3)], "dc1", PLACES, {ONE: 2}, ["a", "b"]) == [nodes(3)], "one has to go"
    gone = replace(PLACES, unwanted=nodes(3))
    assert one_less([nodes(1, 3, 5, 6)], "dc1", gone, {}) == [nodes(1, 5, 6)]


def test_what_a_replica_weighs_where_nobody_knows() -> None:
    assert measured(hosts_of(("dc1", "a", 1))).tablet(1, 5, [ONE]) == TabletLoad(0)
