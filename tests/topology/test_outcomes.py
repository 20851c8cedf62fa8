"""A plan against its slow, obvious twin: two whole rings for every set of operations that may finish."""

from __future__ import annotations

import itertools
import random

import pytest

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.operations import Body, Stage
from lockstep.metadata.transformations import Initialize
from lockstep.metadata.transitions import Transition
from lockstep.placement.deltas import Delta, differences
from lockstep.placement.strategies import Owner
from lockstep.topology import planning
from lockstep.topology.kinds.decommission import Decommission
from lockstep.topology.kinds.move import Move
from lockstep.topology.kinds.rebuild import Rebuild
from lockstep.topology.kinds.remove import Remove
from lockstep.topology.planning import Change, change_of, full_change, plan
from lockstep.topology.transformations import PrepareOperation
from lockstep.values.errors import Rejected
from lockstep.values.ids import NodeId
from tests.metadata.histories import History, SetKeyspaces, founder, network
from tests.placement.twins import compute_by_walks
from tests.topology.drills import random_change, random_start

LEAVING = (Decommission, Remove)


def owners_after(cluster: ClusterMetadata, changes: list[Change]) -> list[Owner]:
    owners = {owner.node: owner for owner in cluster.directory.owners}
    for change in changes:
        if isinstance(change.body, Rebuild):
            continue
        body = change.body
        owners.pop(body.about.replaced, None)
        owners.pop(body.node, None)
        if not isinstance(body, LEAVING):
            node = cluster.directory.by_id[body.node]
            owners[body.node] = Owner(node.id, node.dc, node.rack, change.tokens)
    return [owners[node] for node in sorted(owners)]


def twin(cluster: ClusterMetadata, mine: Change) -> tuple[Transition, ...] | None:
    """None when it is refused for a held range or because it depends on what becomes of others."""
    running = [change_of(o) for o in cluster.operations if o.stage is not Stage.ROLLBACK_TO_NORMAL]
    found: list[Transition] = []
    for ring in cluster.placements.rings:
        replication = ring.replication
        plans = []
        for count in range(len(running) + 1):
            for done in itertools.combinations(running, count):
                before = compute_by_walks(replication, owners_after(cluster, list(done)))
                after = compute_by_walks(replication, owners_after(cluster, [*done, mine]))
                if isinstance(mine.body, Rebuild):
                    plans.append(
                        tuple(Delta(r, nodes, nodes) for r, nodes in before if mine.body.node in nodes)
                    )
                else:
                    plans.append(differences(before, after))
        for deltas in plans:
            if deltas != plans[0] or any(
                t.group == ring.id and t.range.intersects(delta.range)
                for t in cluster.transitions.listed()
                for delta in deltas
            ):
                return None
        found.extend(Transition(ring.id, d.range, d.old, d.new, replication) for d in plans[0])
    return tuple(found)


@pytest.mark.parametrize("seed", range(2000, 2040))
def test_a_plan_is_made_and_refused_as_by_trying_every_outcome(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "_refuse_lost_copies", lambda *_: None)
    history, rng = random_start(seed)
    for _ in range(80):
        body = random_change(history, rng)
        if isinstance(body, PrepareOperation) and not body.body.about.is_global:
            compare(history.now, body.body)
        history.tried(body)


def compare(cluster: ClusterMetadata, asked: Body) -> bool:
    """Whether it was refused by other operations."""
    try:
        mine = full_change(cluster, asked)
    except Rejected:
        return False
    expected = twin(cluster, mine)
    try:
        found = plan(cluster, mine)
    except Rejected as refused:
        if "would miss" in refused.message or "before it was written" in refused.message:
            return False
        assert expected is None, refused.message
        return True
    assert found == expected
    return False


@pytest.mark.slow
def test_parallel_operations_are_refused_and_made_as_by_trying_every_outcome() -> None:
    """Four operations at once on rings of twelve nodes: most plans see a running one."""
    refused = made = 0
    for seed in range(60):
        rng = random.Random(seed)
        history = History()
        tokens = rng.sample(range(-1000, 1000), 50)
        nodes = [
            founder(n, tuple(sorted(tokens[n * 2 : n * 2 + 2])), "dc1", f"r{n % 3}") for n in range(1, 13)
        ]
        history.submit(Initialize("c", "n", tuple(nodes), voters=(NodeId(1),)))
        history.submit(SetKeyspaces((("k", network(dc1=rng.randint(1, 3))),)))
        for node in rng.sample(range(2, 12), 6):
            kind = rng.choice((Decommission, Move, Rebuild))
            moved = tuple(sorted(tokens[30 + node : 31 + node])) if kind is Move else ()
            asked = kind(NodeId(node), moved) if kind is Move else kind(NodeId(node))
            refused += compare(history.now, asked)
            made += history.tried(PrepareOperation(asked)) is None
    assert refused > 50 and made > 50


def test_operations_that_do_not_touch_are_planned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    history = History()
    nodes = [founder(n, (n * 100,), "dc1", "r1") for n in range(1, 41)]
    history.submit(Initialize("c", "n", tuple(nodes), voters=(NodeId(1),)))
    history.submit(SetKeyspaces((("k", network(dc1=3)),)))
    asked: list[Change] = []
    computed = planning._deltas
    monkeypatch.setattr(planning, "_deltas", lambda *given: asked.append(given[3]) or computed(*given))
    for node in (10, 20, 30):
        history.submit(PrepareOperation(Decommission(NodeId(node))))
    # A change of an idle ring is planned as often as one beside running operations.
    assert len({asked.count(change) for change in asked}) == 1
    assert len(history.now.operations) == 3
