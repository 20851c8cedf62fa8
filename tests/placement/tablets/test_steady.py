"""What only varies moves nothing: numbers that nodes say anew each round, and plans made from them."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.placement.tablets import target
from lockstep.placement.tablets.load import (
    BYTES_BAND,
    CAPACITY_BAND,
    GIB,
    RATE_BAND_MIN,
    SMALLEST_SHARE,
    Host,
    LoadStatistics,
    NodeLoad,
    TabletLoad,
    steadied,
)
from lockstep.placement.tablets.map import TabletMap, even_rights, map_of
from lockstep.placement.tablets.target import BalancedTable
from lockstep.values.ids import NodeId
from lockstep.values.node_limits import TARGET_TABLET_BYTES

from .clusters import CAPACITY, Carried, hosts_of, measured, scattered, setting

ROUNDS = 12
#: Twice as much of either sign is within the band, from wherever the first round was.
VARY_BYTES = BYTES_BAND / 2.2
VARY_CAPACITY = CAPACITY_BAND / 2.2


class Varying:
    """A cluster whose nodes say something else in every round of what stays as it is."""

    def __init__(self, seed: int, racks: Sequence[int], counts: Sequence[int], is_small: bool) -> None:
        self.rng = random.Random(seed)
        self.hosts = hosts_of(
            *[("dc1", f"r{rack}", 1 + seed % 3) for rack, count in enumerate(racks) for _ in range(count)]
        )
        factor = min(3, len(self.hosts))
        maps = [
            scattered(at, count, setting(dc1=factor), self.hosts, self.rng)
            for at, count in enumerate(counts, 1)
        ]
        self.capacity = {host.node: self.rng.choice((1, 1, 2)) * CAPACITY for host in self.hosts}
        self.is_small = is_small
        self.bytes = {
            (one.id, tablet.right): self.rng.randrange(3 * GIB) for one in maps for tablet in one.tablets()
        }
        self.carried = Carried(self.hosts, [BalancedTable(one) for one in maps], measured(self.hosts, maps))
        self.known: dict[NodeId, NodeLoad] = {}

    def round(self, is_steadied: bool = True, growth: float = 1.0) -> int:
        """Nodes say what they hold, and plans are carried out to their end; how many moves that were."""
        before = len(self.carried.moved)
        said = {host.node: self._said(host, growth) for host in self.hosts}
        known = dict(self.carried.statistics.nodes) if self.known else {}
        self.known = steadied(known, said) if is_steadied else said
        number = self.carried.statistics.round + 1
        self.carried.statistics = LoadStatistics(number, self.known)
        self.carried.run()
        self.carried.check()
        return len(self.carried.moved) - before

    def _said(self, host: Host, growth: float) -> NodeLoad:
        capacity = int(self.capacity[host.node] * self.rng.uniform(1 - VARY_CAPACITY, 1 + VARY_CAPACITY))
        found: dict[int, dict[int, TabletLoad]] = {}
        for one in self.carried.maps.values():
            for tablet in one.tablets():
                if host.node in tablet.nodes:
                    found.setdefault(one.id, {})[tablet.right] = self._load(one, tablet.right, growth)
        return NodeLoad(capacity, 0.0, found)

    def _load(self, one: TabletMap, right: int, growth: float) -> TabletLoad:
        rate = self.rng.uniform(0, RATE_BAND_MIN)
        if self.is_small:
            return TabletLoad(self.rng.randrange(TARGET_TABLET_BYTES // SMALLEST_SHARE), rate / 2, rate / 2)
        vary = self.rng.uniform(1 - VARY_BYTES, 1 + VARY_BYTES)
        return TabletLoad(int(self.bytes[one.id, right] * vary * growth), rate / 2, rate / 2)


CLUSTERS = st.tuples(
    st.integers(0, 1 << 30),
    st.lists(st.integers(1, 3), min_size=1, max_size=3),
    st.lists(st.integers(1, 24), min_size=1, max_size=3),
    st.booleans(),
)


@settings(max_examples=40, deadline=None)
@given(CLUSTERS)
def test_what_varies_within_its_bands_moves_nothing(drawn: tuple[int, list[int], list[int], bool]) -> None:
    """Not one move in many rounds of statistics once the first was acted on: tablets too small to matter that
    grow and shrink by all they have, larger ones that are estimated, disks, and requests."""
    varying = Varying(*drawn)
    varying.round()
    assert [varying.round() for _ in range(ROUNDS)] == [0] * ROUNDS


@settings(max_examples=20, deadline=None)
@given(CLUSTERS, st.floats(0.8, 1.6))
def test_plans_end_where_tables_grow_or_shrink(
    drawn: tuple[int, list[int], list[int], bool], growth: float
) -> None:
    """In each round, however sizes change, and with one replica in its band and another beside it."""
    varying = Varying(*drawn)
    for number in range(4):
        varying.round(growth=growth**number)


def test_without_bands_the_same_clusters_move() -> None:
    """What the property is about: two of three such clusters moved tablets again in most rounds."""
    moved = 0
    for seed in range(6):
        varying = Varying(seed, (2, 3), (24, 12), is_small=False)
        varying.round(is_steadied=False)
        moved += sum(varying.round(is_steadied=False) for _ in range(4))
    assert moved > 0


def test_replicas_that_say_different_sizes_do_not_change_places_for_ever() -> None:
    """Of two replicas of a tablet the one goes where the other is only if that one stays away."""
    varying = Varying(12, (2, 3), (22, 12, 5), is_small=False)
    for number in range(8):
        varying.round(is_steadied=False, growth=1.15**number)


def test_what_differs_by_more_than_its_band_is_news() -> None:
    known = {NodeId(1): NodeLoad(1000, 0.0, {1: {5: TabletLoad(100, 10.0, 1000.0), 7: TabletLoad(100)}})}
    said = {
        NodeId(1): NodeLoad(1049, 0.0, {1: {5: TabletLoad(109, 59.0, 1240.0), 7: TabletLoad(111)}}),
        NodeId(2): NodeLoad(7),
    }
    found = steadied(known, said)
    assert found[NodeId(1)] == NodeLoad(
        1000, 0.0, {1: {5: TabletLoad(100, 10.0, 1000.0), 7: TabletLoad(111)}}
    )
    assert found[NodeId(2)] == NodeLoad(7), "who was not known is taken at its word"
    far = {NodeId(1): NodeLoad(1051, 0.0, {1: {5: TabletLoad(89, 61.0, 1260.0)}})}
    assert steadied(known, far) == far, "and what a node does not say any more is gone"


def test_requests_that_a_node_serves_without_noticing_move_nothing() -> None:
    hosts = hosts_of(*[("dc1", "a", 1)] * 2)
    rights = even_rights(20)
    one = map_of(
        1, setting(dc1=1), [(right, ((NodeId(1 + at % 2), 0),)) for at, right in enumerate(rights)], 1
    )
    for rate, moves in ((45.0, False), (60.0, True)):
        sizes = {(1, right): TabletLoad(GIB, 0.0 if at % 2 else rate) for at, right in enumerate(rights)}
        carried = Carried(hosts, [BalancedTable(one)], measured(hosts, [one], sizes))
        carried.run()
        assert bool(carried.moved) is moves, f"ten tablets of {rate} requests on one node, none on the other"


def test_two_pieces_are_not_exchanged_for_a_tenth_of_one() -> None:
    hosts = hosts_of(*[("dc1", "a", 1)] * 2)
    rights = even_rights(8)
    for part, moves in ((1.1, False), (1.3, True)):
        placed = [(right, ((NodeId(1 + at % 2), 0),)) for at, right in enumerate(rights)]
        sizes = {
            (1, right): TabletLoad(int(GIB * (1.0 if at % 2 else part))) for at, right in enumerate(rights)
        }
        one = map_of(1, setting(dc1=1), placed, 1)
        carried = Carried(hosts, [BalancedTable(one)], measured(hosts, [one], sizes))
        carried.run()
        assert bool(carried.moved) is moves, f"four tablets of {part} GiB on one node, of 1 on the other"


# A cluster that is calm


class Growing(Varying):
    """Tables to which rows are written, in a cluster that was made even: all tablets grow alike, and each
    replica is known within a band."""

    def __init__(self, seed: int, nodes: int, tablets: int) -> None:
        super().__init__(seed, (nodes,), (tablets,), is_small=False)
        self.bytes = dict.fromkeys(self.bytes, 2 * GIB)
        self.capacity = dict.fromkeys(self.capacity, CAPACITY)
        self.round()

    def moved_while_it_doubles(self) -> int:
        return sum(self.round(growth=1.06**number) for number in range(1, 13))


@pytest.mark.parametrize(("nodes", "tablets"), [(3, 16), (5, 16), (8, 24)])
def test_tables_that_grow_alike_move_nothing(nodes: int, tablets: int) -> None:
    """While what is known of 20 clusters doubles, each number by itself."""
    moved = [Growing(seed, nodes, tablets).moved_while_it_doubles() for seed in range(20)]
    assert sum(moved) == 0, moved


def test_without_calm_each_tablet_moves_while_a_table_doubles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "is_apart", lambda _packing: True)
    moved = sum(Growing(seed, 5, 16).moved_while_it_doubles() for seed in range(4))
    assert moved > 4 * 16, "as many as there are tablets at the least"


def test_what_is_more_than_chance_moves_and_then_lies_as_even_as_can_be() -> None:
    hosts = hosts_of(*[("dc1", "a", 1)] * 2)
    rights = even_rights(40)
    one = map_of(
        1, setting(dc1=1), [(right, ((NodeId(1 + at % 2), 0),)) for at, right in enumerate(rights)], 1
    )
    for more, moves in ((1.05, False), (1.25, True)):
        carried = Carried(hosts, [BalancedTable(one)], measured(hosts, [one]))
        carried.run()
        assert not carried.moved
        sizes = {
            (1, right): TabletLoad(int(GIB * (1 if at % 2 else more))) for at, right in enumerate(rights)
        }
        carried.statistics = measured(hosts, [one], sizes, number=2)
        carried.run()
        assert bool(carried.moved) is moves
        held = carried.bytes_on()
        if moves:
            assert max(held.values()) - min(held.values()) <= 0.01 * max(held.values())


def test_new_statistics_do_not_turn_moves_round_that_are_still_to_come() -> None:
    """A newcomer gets what was planned for it once, whatever is said of sizes meanwhile."""
    hosts = hosts_of(*[("dc1", "a", 1)] * 4)
    rng = random.Random(3)
    one = scattered(1, 96, setting(dc1=1), hosts[:3], rng)
    carried = Carried(hosts, [BalancedTable(one)], measured(hosts, [one]), slow=2)
    first = carried.step()
    wanted = {(move.right, move.target[0]) for move in (*first.moves, *first.left)}
    number = 1
    while not carried.plans[-1].is_empty:
        number += 1
        sizes = {(1, right): TabletLoad(int(GIB * rng.uniform(0.9, 1.1))) for right in even_rights(96)}
        carried.statistics = measured(hosts, list(carried.maps.values()), sizes, number=number)
        carried.step()
    carried.run()
    assert {(move.right, move.target[0]) for move in carried.moved} == wanted
    assert len(carried.moved) == len(wanted)


def test_what_is_left_of_a_target_is_computed_anew_where_a_disk_is_full_by_now() -> None:
    hosts = hosts_of(*[("dc1", "a", 1)] * 3)
    one = scattered(1, 48, setting(dc1=1), hosts[:2], random.Random(1))
    carried = Carried(hosts, [BalancedTable(one)], measured(hosts, [one]), slow=2)
    first = carried.step()
    assert first.left and {move.target[0] for move in first.left} == {3}
    full = measured(hosts, [one], capacity={3: 3 * GIB}, number=2)
    carried.statistics = full
    carried.run()
    assert carried.bytes_on()[NodeId(3)] <= 3 * GIB


def test_places_that_change_make_everything_as_even_as_can_be() -> None:
    hosts = hosts_of(*[("dc1", "a", 1)] * 3)
    one = scattered(1, 60, setting(dc1=1), hosts[:2], random.Random(1))
    carried = Carried(hosts[:2], [BalancedTable(one)], measured(hosts[:2], [one]))
    carried.run()
    carried.hosts = hosts
    carried.statistics = measured(hosts, list(carried.maps.values()), number=2)
    carried.run()
    assert set(carried.on_nodes().values()) == {20}
