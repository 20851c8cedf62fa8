"""Random histories: every invariant at every epoch, the final ring equal to a fresh one, exact replay."""

from __future__ import annotations

from collections import Counter

import pytest

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.log.apply import state_digest
from lockstep.metadata.operations import Stage
from lockstep.topology.invariants import check_restored, check_stale_coordinators, violations
from lockstep.topology.kinds.registry import KINDS
from lockstep.topology.transformations import PrepareOperation
from tests.metadata.histories import History
from tests.metadata.stored import stored
from tests.placement.test_strategies import twin_replicas
from tests.topology.drills import Coordinator, random_change, random_start

SEEDS = range(60)
TOKENS = [*range(-125, 126, 7), 2**62]


def assert_rings_are_fresh(cluster: ClusterMetadata) -> None:
    owners = list(cluster.directory.owners)
    for ring in cluster.placements.rings:
        for token in TOKENS:
            group = ring.group_for(token)
            assert list(group.reads) == twin_replicas(ring.replication, owners, token), (ring, token)


def play(seed: int, steps: int = 60) -> tuple[History, Counter[str]]:
    """A random history; operations advance in any interleaving, as if barriers passed at once."""
    history, rng = random_start(seed)
    happened: Counter[str] = Counter()
    prepared: dict[int, ClusterMetadata] = {}
    for _ in range(steps):
        before = history.now
        body = random_change(history, rng)
        refusal = history.tried(body)
        name = type(body).__name__
        happened[f"{name} {'refused' if refusal else 'done'}"] += 1
        if isinstance(body, PrepareOperation):
            happened[f"{body.body.about.kind} {'refused' if refusal else 'done'}"] += 1
        if refusal is not None:
            continue
        after = history.now
        assert violations(before, after) == (), (seed, after.epoch, body)
        after.validate()
        happened["in parallel"] += len(after.operations) > 1
        for operation in after.operations:
            prepared.setdefault(operation.id, before)
        for operation in before.operations:
            happened[f"{operation.kind} succeeded"] += operation.id not in after.operations_by_id and (
                operation.stage is not Stage.ROLLBACK_TO_NORMAL
            )
            if operation.id not in after.operations_by_id and operation.stage is Stage.ROLLBACK_TO_NORMAL:
                happened["rolled back"] += 1
                if same_but_for(prepared[operation.id], before, operation.id):
                    assert check_restored(prepared[operation.id], after) == ()
                    happened["restored"] += 1
        if not after.operations:
            assert_rings_are_fresh(after)
            happened["at rest"] += 1
    return history, happened


def same_but_for(start: ClusterMetadata, end: ClusterMetadata, operation_id: int) -> bool:
    """Whether only this operation ran between the two values."""
    others = [operation.id for operation in end.operations if operation.id != operation_id]
    return (
        end.next_operation_id == operation_id + 1
        and start.schema == end.schema
        and others == [operation.id for operation in start.operations]
        and all(start.operations_by_id[o] == end.operations_by_id[o] for o in others)
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_invariants_hold_at_every_epoch_and_replay_is_exact(seed: int) -> None:
    history, _ = play(seed)
    again = history.replayed()
    assert stored(again) == stored(history.now)
    assert state_digest(again) == state_digest(history.now)


@pytest.mark.slow
def test_the_histories_reach_what_they_are_for() -> None:
    total: Counter[str] = Counter()
    for seed in range(100):
        total += play(seed)[1]
    for fact in (
        "PrepareOperation done",
        "PrepareOperation refused",
        "AdvanceOperation done",
        "CancelOperation done",
        "CancelOperation refused",
        "SetKeyspaces done",
        "SetKeyspaces refused",
        "in parallel",
        "rolled back",
        "restored",
        "at rest",
        *(f"{kind.name} {how}" for kind in KINDS for how in ("done", "succeeded")),
    ):
        assert total[fact] >= 3, (fact, total)


@pytest.mark.parametrize("seed", range(100, 112))
def test_a_driven_cluster_is_safe_for_coordinators_at_any_epoch(seed: int) -> None:
    """The coordinator's own steps with lagging nodes: nobody, however stale, can miss a quorum."""
    history, rng = random_start(seed)
    world = Coordinator(history, rng)
    for _ in range(160):
        if not history.now.operations:
            history.tried(random_change(history, rng))
            continue
        epoch = history.now.epoch
        if rng.random() < 0.05:
            world.known = {}
        world.round()
        if history.now.epoch != epoch:
            found = check_stale_coordinators(history.values[-7:], world.seen)
            assert found == (), (seed, history.now.epoch)
    world.finish()
    assert_rings_are_fresh(history.now)
