"""Which replicas of a range are witnesses: the last ones of each data centre, whoever asks."""

from __future__ import annotations

from itertools import permutations

import pytest

from lockstep.placement.circle import Owner
from lockstep.placement.strategies import compute
from lockstep.placement.witnesses import full_of
from lockstep.schema.model import Replication
from lockstep.values.ids import NodeId

TOPOLOGY = "NetworkTopologyStrategy"
ONE = Replication(TOPOLOGY, (("a", -1), ("a", 3)))


def nodes(*numbers: int) -> tuple[NodeId, ...]:
    return tuple(map(NodeId, numbers))


@pytest.mark.parametrize("order", list(permutations((1, 2, 3))))
def test_the_last_replica_in_ring_order_is_the_witness(order: tuple[int, ...]) -> None:
    assert full_of(ONE, nodes(*order), lambda _: "a") == nodes(*order[:2])


def test_data_centres_have_witnesses_of_their_own() -> None:
    setting = Replication(TOPOLOGY, (("a", -1), ("a", 3), ("b", 2), ("c", -2), ("c", 2)))
    dcs = {1: "a", 2: "c", 3: "b", 4: "a", 5: "c", 6: "b", 7: "a"}
    assert full_of(setting, nodes(1, 2, 3, 4, 5, 6, 7), lambda node: dcs[int(node)]) == nodes(1, 3, 4, 6)


def test_with_too_few_nodes_it_is_a_witness_that_is_missing() -> None:
    assert full_of(ONE, nodes(8, 9), lambda _: "a") == nodes(8, 9)
    assert full_of(ONE, (), lambda _: "a") == ()


def test_without_witnesses_all_keep_the_data() -> None:
    assert full_of(Replication(TOPOLOGY, (("a", 3),)), nodes(3, 1, 2), lambda _: "a") == nodes(3, 1, 2)


def test_who_joins_turns_nobody_into_a_full_replica() -> None:
    """In racks of their own, so that the newcomer comes before those behind it, and the last one goes."""
    before = [Owner(NodeId(n), "a", f"r{n}", (n * 100,)) for n in (1, 2, 3)]
    after = compute(ONE, [*before, Owner(NodeId(4), "a", "r4", (150,))])
    old = compute(ONE, before)
    for range_, replicas in after:
        was = next(found for where, found in old if where.left < range_.right <= where.right)
        full, earlier = full_of(ONE, replicas, lambda _: "a"), full_of(ONE, was, lambda _: "a")
        assert set(full) <= {*earlier, NodeId(4)}
