"""Proofs are made once for each shape: equal shapes have equal answers, others are told apart."""

from __future__ import annotations

import random

import pytest

from lockstep.placement.placements import ReplicaGroup
from lockstep.placement.quorums import adjacent_safe, shape_of
from lockstep.schema.model import Replication
from lockstep.values.ids import NodeId


def by_tens(node: NodeId) -> str:
    return f"dc{node // 10}"


def some(rng: random.Random) -> tuple[NodeId, ...]:
    return tuple(map(NodeId, rng.sample([*range(10, 15), *range(20, 24)], rng.randint(1, 4))))


def test_renamed_nodes_have_the_shape_of_the_others() -> None:
    one = (NodeId(10), NodeId(11)), (NodeId(11), NodeId(12), NodeId(20))
    renamed = (NodeId(14), NodeId(13)), (NodeId(25), NodeId(13), NodeId(11))
    assert shape_of(one, by_tens) == shape_of(renamed, by_tens)
    elsewhere = (NodeId(10), NodeId(11)), (NodeId(11), NodeId(22), NodeId(20))
    swapped = one[1], one[0]
    assert len({shape_of(lists, by_tens) for lists in (one, elsewhere, swapped)}) == 3


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_equal_shapes_are_equally_safe(seed: int) -> None:
    rng = random.Random(seed)
    replication = Replication("NetworkTopologyStrategy", (("dc1", 2), ("dc2", 2)))
    answers: dict[object, bool] = {}
    repeated = 0
    for _ in range(3000):
        old, new = some(rng), some(rng)
        both = old + tuple(node for node in new if node not in old)
        before, after = ReplicaGroup(old, both, 1), ReplicaGroup(new, both, 2)
        safe = adjacent_safe(before, after, replication, by_tens) is None
        shape = shape_of((before.reads, before.writes, after.reads, after.writes), by_tens)
        repeated += shape in answers
        assert answers.setdefault(shape, safe) == safe
    assert repeated > 1000 and len(set(answers.values())) == 2
