"""Planted bugs: each must be refused by a proof or found by an invariant."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.directory import Directory
from lockstep.metadata.operations import OPERATIONS, Stage
from lockstep.metadata.transitions import NO_TRANSITIONS, TRANSITIONS
from lockstep.schema.model import Replication
from lockstep.topology import planning
from lockstep.topology.invariants import (
    check_endings,
    check_replica_counts,
    check_restored,
    check_stale_coordinators,
    check_transitions,
    violations,
)
from lockstep.topology.kinds import bootstrap, ring
from lockstep.topology.kinds.bootstrap import Bootstrap
from lockstep.topology.stages import Side, StageRow
from lockstep.topology.transformations import AdvanceOperation, CancelOperation, PrepareOperation
from lockstep.values.ids import NodeId
from tests.metadata.histories import History, simple, started
from tests.topology.drills import Coordinator, random_change, random_start, refused, register, run_out, run_to
from tests.topology.test_histories import play

JOIN = PrepareOperation(Bootstrap(NodeId(4), (50,)))


def three_nodes(factor: int = 3) -> History:
    history = started([(0,), (100,), (200,)], ("k", simple(factor)))
    history.submit(register(4, "dc1", "r1"))
    return history


def with_row(stage: Stage, **change: object) -> tuple[StageRow, ...]:
    rows = bootstrap.KIND.stages
    return tuple(msgspec.structs.replace(r, **change) if r.stage is stage else r for r in rows)


@pytest.fixture
def no_proofs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(planning, "refuse_unsafe_change", lambda *_: None)
    yield


def all_violations(history: History) -> list[str]:
    pairs = zip(history.values, history.values[1:], strict=False)
    return [line for before, after in pairs for line in violations(before, after)]


SKIPS_ADDING_WRITES = with_row(Stage.COMMIT_CDC_GENERATION, next=Stage.WRITE_BOTH_READ_NEW)
DROPS_OLD_WRITES_WITH_READS = with_row(Stage.WRITE_BOTH_READ_OLD, next=Stage.NEW_ONLY)
READS_NEW_AT_ONCE = with_row(Stage.WRITE_BOTH_READ_OLD, reads=Side.NEW)
BUGS = [SKIPS_ADDING_WRITES, DROPS_OLD_WRITES_WITH_READS, READS_NEW_AT_ONCE]


@pytest.mark.parametrize("rows", BUGS)
def test_a_table_with_an_unsafe_step_is_refused_before_it_begins(
    rows: tuple[StageRow, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    history = three_nodes()
    monkeypatch.setattr(bootstrap, "KIND", msgspec.structs.replace(bootstrap.KIND, stages=rows))
    message = refused(history, JOIN)
    assert "would be read before it was written" in message or "would miss" in message


@pytest.mark.usefixtures("no_proofs")
@pytest.mark.parametrize("rows", BUGS)
def test_without_the_proof_the_invariants_find_it(
    rows: tuple[StageRow, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    history = three_nodes()
    monkeypatch.setattr(bootstrap, "KIND", msgspec.structs.replace(bootstrap.KIND, stages=rows))
    history.submit(JOIN)
    run_out(history, 1)
    assert [line for line in all_violations(history) if line.startswith(("PLC-2", "PLC-3"))]


def test_operations_that_ignore_what_is_held_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "_refuse_held", lambda *_: None)
    monkeypatch.setattr(planning, "_outcomes", lambda _: iter(()))
    history = three_nodes()
    history.submit(register(5, "dc1", "r1"))
    history.submit(JOIN)
    assert all_violations(history) == []
    history.submit(PrepareOperation(Bootstrap(NodeId(5), (60,))))
    found = all_violations(history)
    assert any(line.startswith("OP-1") and "hold one range" in line for line in found)
    assert any(line.startswith("PLC-1") and "changed by" in line for line in found)


def test_what_has_ended_and_holds_ranges_is_found() -> None:
    history = three_nodes()
    history.submit(JOIN)
    ended = history.now.changed(OPERATIONS.set(history.now.running.without(1)))
    assert check_transitions(history.now) == ()
    assert check_transitions(ended) == ("OP-1: operation 1 has ended and holds ranges",)
    with pytest.raises(AssertionError, match="operations and running requests match"):
        ended.validate()


@pytest.mark.parametrize("stage", [Stage.WRITE_BOTH_READ_OLD, Stage.WRITE_BOTH_READ_NEW])
def test_an_operation_that_ends_too_early_is_found(stage: Stage) -> None:
    history = three_nodes()
    history.submit(JOIN)
    run_to(history, 1, stage)
    ended = history.now.changed(
        OPERATIONS.set(history.now.running.without(1)), TRANSITIONS.set(NO_TRANSITIONS)
    )
    assert any("ended in stage" in line for line in check_endings(history.now, ended))
    assert check_replica_counts(ended)


def test_a_cancel_that_leaves_its_cuts_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring, "merged_rings", lambda placements, *_: placements)
    history = three_nodes()
    before = history.now
    history.submit(JOIN)
    history.submit(CancelOperation(1))
    history.submit(AdvanceOperation(1, Stage.ROLLBACK_TO_NORMAL))
    assert check_restored(before, history.now) == ("OP-1: the placements differ after a cancel",)


class Reckless(Coordinator):
    """Believes that every node has seen everything."""

    def round(self) -> bool:
        now = self.history.now
        self.known = {node.id: now.epoch for node in now.directory.nodes}
        return super().round()


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Coordinator, Reckless])
def test_steps_without_barriers_let_stale_coordinators_miss_writes(kind: type[Coordinator]) -> None:
    found: list[str] = []
    for seed in range(8):
        history, rng = random_start(seed)
        world = kind(history, rng)
        for _ in range(120):
            if not history.now.operations:
                history.tried(random_change(history, rng))
                continue
            world.round()
            found.extend(check_stale_coordinators(history.values[-5:], world.seen))
    assert bool(found) == (kind is Reckless)
    if found:
        assert {line.split(" at epoch ")[1].split(": ")[1] for line in found} == {
            "a stale read misses the newest write",
            "the newest read misses a stale write",
        }


@pytest.mark.parametrize(("assumed", "seed"), [("all fail", 1010), ("all finish", 1166)])
def test_plans_that_assume_one_outcome_of_running_operations_are_found(
    assumed: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A range that one operation shields from another changes when the first is cancelled, or ends."""

    computed, now = planning._deltas, []
    made = planning.plan

    def seen(cluster: ClusterMetadata, mine: planning.Change) -> object:
        now[:] = [o for o in cluster.operations if o.stage is not Stage.ROLLBACK_TO_NORMAL]
        return made(cluster, mine)

    def one_outcome(directory: Directory, replication: Replication, done: object, mine: object) -> object:
        finished = [planning.change_of(o) for o in now] if assumed == "all finish" else []
        return computed(directory, replication, finished, mine)  # type: ignore[arg-type]

    monkeypatch.setattr(planning, "_deltas", one_outcome)
    monkeypatch.setattr(ring, "plan", seen)
    with pytest.raises(AssertionError):
        for near in range(seed, seed + 8):
            play(near, 80)
