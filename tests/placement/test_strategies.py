"""Replicas of every range against the drivers' token maps and against a slow, obvious twin."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from cassandra.metadata import Murmur3Token
from cassandra.metadata import NetworkTopologyStrategy as DriverNetwork
from cassandra.metadata import SimpleStrategy as DriverSimple

from lockstep.placement import strategies
from lockstep.placement.strategies import Owner, compute, walked
from lockstep.schema.model import Replication
from lockstep.values.ids import NodeId
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN, Range
from tests.placement.twins import compute_by_walks


class DriverHost:
    def __init__(self, owner: Owner) -> None:
        self.node = owner.node
        self.datacenter = owner.dc
        self.rack = owner.rack


def random_owners(rng: random.Random, dcs: int, racks: int) -> list[Owner]:
    count = rng.randint(1, 8)
    tokens = rng.sample(range(-200, 200), count * 4)
    owners = []
    for number in range(1, count + 1):
        mine = tuple(sorted(tokens.pop() for _ in range(rng.randint(1, 4))))
        dc, rack = f"dc{rng.randint(1, dcs)}", f"r{rng.randint(1, racks)}"
        owners.append(Owner(NodeId(number), dc, rack, mine))
    return owners


def driver_replicas(replication: Replication, owners: list[Owner]) -> dict[int, list[int]]:
    """token -> replicas of the range that ends there, as the driver routes."""
    by_token = {Murmur3Token(token): DriverHost(owner) for owner in owners for token in owner.tokens}
    hosts = {owner.node: DriverHost(owner) for owner in owners}
    by_token = {token: hosts[host.node] for token, host in by_token.items()}
    if replication.strategy == "SimpleStrategy":
        strategy = DriverSimple({"replication_factor": str(replication.total)})
    else:
        strategy = DriverNetwork({dc: str(factor) for dc, factor in replication.factors})
    found = strategy.make_token_replica_map(by_token, sorted(by_token))
    return {token.value: [host.node for host in replicas] for token, replicas in found.items()}


def twin_replicas(replication: Replication, owners: list[Owner], token: int) -> list[int]:
    """The replicas of one token, by the words of the definition, without shared tables."""
    circle = sorted((t, owner.node) for owner in owners for t in owner.tokens)
    order = [node for t, node in circle if t >= token] + [node for t, node in circle if t < token]
    distinct = list(dict.fromkeys(order))
    if replication.strategy == "SimpleStrategy":
        return distinct[: replication.total]
    places = {owner.node: owner for owner in owners}
    chosen: list[int] = []
    for dc, factor in replication.factors:
        local = [node for node in distinct if places[node].dc == dc]
        racks = {places[node].rack for node in local}
        repeats = factor - len(racks)
        mine: list[int] = []
        for node in order:
            if node not in local or node in mine or len(mine) == min(factor, len(local)):
                continue
            if places[node].rack in {places[other].rack for other in mine}:
                if repeats <= 0:
                    continue
                repeats -= 1
            mine.append(node)
        chosen.extend(mine)
    return sorted(chosen, key=order.index)


def settings(rng: random.Random) -> list[Replication]:
    return [
        Replication("SimpleStrategy", (("", rng.randint(1, 4)),)),
        Replication("NetworkTopologyStrategy", (("dc1", rng.randint(1, 3)), ("dc2", rng.randint(1, 3)))),
    ]


@pytest.mark.parametrize("seed", range(120))
def test_replicas_equal_the_definition_and_the_drivers(seed: int) -> None:
    rng = random.Random(seed)
    owners = random_owners(rng, dcs=rng.randint(1, 2), racks=rng.randint(1, 3))
    for replication in settings(rng):
        driver = driver_replicas(replication, owners)
        for range_, replicas in compute(replication, owners):
            assert list(replicas) == twin_replicas(replication, owners, range_.right)
            if range_.right in driver:
                assert set(replicas) == set(driver[range_.right]), (replication, owners, range_)
                if replication.strategy == "SimpleStrategy":
                    assert list(replicas) == driver[range_.right]


@pytest.mark.parametrize("seed", range(20))
def test_ranges_cover_the_ring_and_are_cut_at_every_token(seed: int) -> None:
    rng = random.Random(seed)
    owners = random_owners(rng, 2, 2)
    ranges = [range_ for range_, _ in compute(settings(rng)[0], owners)]
    assert ranges[0].left == TOKEN_MIN and ranges[-1].right == TOKEN_MAX
    assert all(one.right == other.left for one, other in pairwise(ranges))
    assert {r.right for r in ranges} == {t for owner in owners for t in owner.tokens} | {TOKEN_MAX}


def test_the_last_range_belongs_to_the_owner_of_the_first_token() -> None:
    owners = [Owner(NodeId(1), "dc1", "r1", (100,)), Owner(NodeId(2), "dc1", "r1", (200,))]
    placed = compute(Replication("SimpleStrategy", (("", 1),)), owners)
    assert placed == (
        (Range(TOKEN_MIN, 100), (1,)),
        (Range(100, 200), (2,)),
        (Range(200, TOKEN_MAX), (1,)),
    )


def test_an_owner_of_the_greatest_token_has_the_last_range() -> None:
    owners = [Owner(NodeId(1), "dc1", "r1", (TOKEN_MAX,)), Owner(NodeId(2), "dc1", "r1", (0,))]
    placed = compute(Replication("SimpleStrategy", (("", 1),)), owners)
    assert placed == ((Range(TOKEN_MIN, 0), (2,)), (Range(0, TOKEN_MAX), (1,)))


def test_without_owners_nobody_replicates() -> None:
    assert compute(Replication("SimpleStrategy", (("", 3),)), []) == ((Range(TOKEN_MIN, TOKEN_MAX), ()),)


def test_racks_are_distinct_while_there_are_enough() -> None:
    racks = ["r1", "r1", "r2", "r3"]
    owners = [Owner(NodeId(n), "dc1", rack, (n * 10,)) for n, rack in enumerate(racks, start=1)]
    placed = dict(compute(Replication("NetworkTopologyStrategy", (("dc1", 3),)), owners))
    assert placed[Range(TOKEN_MIN, 10)] == (1, 3, 4)


@pytest.mark.parametrize("seed", range(60))
def test_the_sweep_finds_what_a_walk_from_every_token_finds(seed: int) -> None:
    rng = random.Random(seed)
    owners = random_owners(rng, rng.randint(1, 3), rng.randint(1, 4))
    for replication in settings(rng):
        assert compute(replication, owners) == compute_by_walks(replication, owners)


def test_a_sweep_walks_once_however_many_tokens_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    walks = []
    monkeypatch.setattr(strategies, "walked", lambda *given: walks.append(given) or walked(*given))
    rng = random.Random(1)
    for count in (10, 100):
        owners = [
            Owner(NodeId(n), f"dc{n % 3}", f"r{n % 2}", tuple(sorted(rng.sample(range(10**9), 16))))
            for n in range(1, count)
        ]
        walks.clear()
        compute(Replication("NetworkTopologyStrategy", (("dc0", 3), ("dc1", 2), ("dc2", 3))), owners)
        assert len(walks) <= 2


@pytest.mark.parametrize("strategy", [strategies.SIMPLE, strategies.NETWORK_TOPOLOGY])
def test_a_keyspace_without_replicas_has_none_anywhere(strategy: str) -> None:
    owners = random_owners(random.Random(3), 1, 1)
    assert {replicas for _, replicas in compute(Replication(strategy, ()), owners)} == {()}
