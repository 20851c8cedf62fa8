"""Bugs that are planted in the planner: what other tests assert of it finds each. And its objective by a
slow, obvious twin.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from lockstep.placement.tablets import load, packing, resize, target
from lockstep.placement.tablets.load import Drain, Host
from lockstep.placement.tablets.moves import Slots
from lockstep.placement.tablets.packing import Packing, Piece, Spot
from lockstep.placement.tablets.target import BalancedTable

from . import spread, test_balancer, test_resize, test_steady
from .clusters import Carried, hosts_of, measured, new_table, scattered, setting
from .twins import unevenness


def racks_are_kept() -> None:
    """Replicas of a tablet stay in different racks, on different nodes, through joins and a drain."""
    rng = random.Random(4)
    hosts = hosts_of(*[("dc1", rack, 2) for rack in "aabbbc"])
    one = scattered(1, 40, setting(dc1=2), hosts, rng)
    hosts[2] = Host(hosts[2].node, "dc1", "b", 2, Drain.LEAVE)
    carried = Carried(hosts, [BalancedTable(one)], measured(hosts, [one]))
    carried.run()
    carried.check()
    rack_of = {host.node: host.rack for host in hosts}
    for tablet in carried.maps[1].tablets():
        assert max(Counter(rack_of[node] for node in tablet.nodes).values()) == 1


def tables_are_even() -> None:
    test_balancer.test_each_table_is_spread_for_itself()
    assert max(spread.worst_share(seed) for seed in range(4)) < spread.WORST


PLANTED: dict[str, tuple[Any, str, Any, Callable[[], None]]] = {
    "no place is refused": (target.DomainPlan, "_refusal", lambda self, piece, to: None, racks_are_kept),
    "tables are not spread": (Packing, "_spread", lambda self: None, tables_are_even),
    "a twentieth is even": (
        packing,
        "FULLNESS_TOLERANCE",
        0.05,
        lambda: test_balancer.test_a_cluster_of_unlike_nodes_ends_within_one_percent(0),
    ),
    "nothing is even": (
        packing,
        "FULLNESS_TOLERANCE",
        0.0,
        test_balancer.test_257_tablets_beside_255_do_not_move,
    ),
    "requests do not count": (
        Packing,
        "_level_rates",
        lambda self: None,
        test_balancer.test_requests_are_spread_where_bytes_are_even,
    ),
    "any difference of requests matters": (
        packing,
        "RATE_TRIGGER_MIN",
        0.0,
        test_steady.test_requests_that_a_node_serves_without_noticing_move_nothing,
    ),
    "any exchange is worth it": (
        packing,
        "EXCHANGE_MIN",
        0.0,
        test_steady.test_two_pieces_are_not_exchanged_for_a_tenth_of_one,
    ),
    "what is said of bytes is news": (
        load,
        "BYTES_BAND",
        0.0,
        test_steady.test_what_varies_within_its_bands_moves_nothing,
    ),
    "slots are never full": (
        Slots,
        "has_room",
        lambda self, move, reader, weight=0: True,
        test_balancer.test_slots_bound_what_a_shard_reads_and_writes_at_once,
    ),
    "whoever has no statistics receives": (
        target,
        "is_measured",
        lambda host, statistics: True,
        test_balancer.test_missing_statistics_hold_a_drain_and_the_node_is_named,
    ),
    "every decision is kept": (
        resize,
        "_against",
        lambda *arguments: None,
        lambda: test_resize.test_decisions_are_kept_until_their_opposite_is_nearer(
            resize.ResizeKind.SPLIT, 4, False
        ),
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_planted_bugs_are_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where, attribute, bug, check = PLANTED[name]
    check()
    monkeypatch.setattr(where, attribute, bug)
    with pytest.raises((AssertionError, RuntimeError)):
        check()


@pytest.mark.parametrize("seed", range(20))
def test_what_steps_lower_is_what_the_twin_works_out(seed: int) -> None:
    rng = random.Random(seed)
    weights = [float(rng.randint(1, 4)) for _ in range(rng.randint(2, 6))]
    made = Packing(weights, lambda piece, to: True, exchanges=4)
    pieces = [
        Piece(Spot(rng.randrange(3), right), rng.randrange(1, 100), 0, rng.randrange(50), at, 0)
        for right in range(rng.randint(1, 80))
        for at in [rng.randrange(len(weights))]
    ]
    for piece in pieces:
        made.add(piece)
    before = unevenness(pieces, weights)
    made.settle()
    after = unevenness(pieces, weights)
    assert after < before or made.steps == 0
    loads = [sum(piece.size for piece in pieces if piece.bin == at) for at in range(len(weights))]
    assert made.load == loads


def test_a_fresh_table_has_nothing_to_move() -> None:
    hosts = hosts_of(*[("dc1", rack, 2) for rack in "abc" for _ in range(2)])
    one = new_table(1, 64, setting(dc1=3), hosts, measured(hosts))
    carried = Carried(hosts, [BalancedTable(one)], measured(hosts, [one]))
    assert carried.run() == 0 and not carried.moved
