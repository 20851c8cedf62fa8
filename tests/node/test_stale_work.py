"""Work of a session that was closed, and entries of a leader that was deposed, come too late for anything.

Whole nodes, struck at chosen places: a copy that hangs through a cancel and a second attempt, and
coordinators that crash or are cut off behind each entry of an operation.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from lockstep.metadata.directory import NodeState
from lockstep.metadata.operations import Stage
from lockstep.node.node import Node
from lockstep.replica.session_guards import SessionGuards
from lockstep.sim.plant import replaced
from lockstep.streaming.stream_target import StreamClient
from lockstep.topology.transformations import AdvanceOperation, CancelOperation
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN, Range
from tests.node.support import Town, decommission
from tests.node.test_failed_work import fill, filled, keys_of, owners
from tests.node.test_work import holds


class _Hang:
    """The first file that is to become visible anywhere waits, verified, until `goes_on`."""

    def __init__(self) -> None:
        self.where: Node | None = None
        self.session = ""
        self.goes_on = False
        self.done = False

    def prepare(self, _name: str, node: Node) -> None:
        take_file = node.data.stream_client._take_file

        async def slow(copy: Any, *others: Any) -> None:
            before = node.data.engine.before_ingest
            if self.where is not None:
                return await take_file(copy, *others)
            self.where, self.session = node, copy.key.session_id

            async def hang(*run: Any) -> None:
                node.data.engine.before_ingest = before  # type: ignore[method-assign]
                # The test stands outside this loop, so it sets no event.
                while not self.goes_on:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
                await before(*run)

            node.data.engine.before_ingest = hang  # type: ignore[method-assign]
            try:
                await take_file(copy, *others)
            finally:
                self.done = True

        node.data.stream_client._take_file = slow  # type: ignore[method-assign]


def wiped(town: Town, number: int) -> None:
    """Nothing is stored there any more: what was deleted, and that it was, is forgotten."""

    async def work(node: Node) -> None:
        stored = node.log.cluster.schema.by_name["k"].tables[0]
        await node.data.engine.wipe((stored.id,), Range(TOKEN_MIN, TOKEN_MAX))

    assert town.finish(town.begin(number, work)).error is None


def resurrected(town: Town) -> list[bytes]:
    """A leave whose copy hangs is cancelled, tried again, and done; all data is deleted, and the deletions
    are forgotten. Then the copy goes on: what it brings back."""
    hang = _Hang()
    town.loaded = hang.prepare
    filled(town)
    town.agreed(4)
    fill(town.node(4))
    leaving = next(n for n in (1, 2, 3, 4) if n not in town.newest.voters)
    assert town.finish(town.submit(1, decommission(leaving))).error is None
    town.until(lambda: hang.where is not None)
    (operation,) = town.newest.operations
    assert hang.session.startswith(f"operation-{operation.id}-")
    assert town.finish(town.submit(1, CancelOperation(operation.id, "no need"))).error is None
    town.until(lambda: not town.newest.operations)
    assert town.finish(town.submit(1, decommission(leaving))).error is None
    town.until(lambda: town.state_of(leaving) is NodeState.LEFT and not town.newest.operations)
    others = [number for number in (1, 2, 3, 4) if number != leaving]
    for number in others:
        wiped(town, number)
    hang.goes_on = True
    town.until(lambda: hang.done)
    town.wait(1.0)
    return [key for key in keys_of(200) for number in others if holds(town.node(number), key)]


@contextlib.contextmanager
def sessions_ignored() -> Iterator[None]:
    """Nobody looks whether the session is open any more."""

    @contextlib.contextmanager
    def hold(self: Any, session_id: str) -> Iterator[None]:
        yield

    with replaced(
        (SessionGuards, "require", lambda *_: None),
        (SessionGuards, "hold", hold),
        (StreamClient, "forget_closed", lambda *_: None),
    ):
        yield


def test_scenario_13_a_copy_that_hangs_through_a_cancel_and_a_retry_brings_nothing_deleted_back() -> None:
    with Town(founders=4) as town:
        assert resurrected(town) == []


def test_it_would_if_nobody_looked_at_the_session() -> None:
    with sessions_ignored(), Town(founders=4) as town:
        assert resurrected(town) != []


# ---- coordinators


def stages_entered(town: Town) -> list[tuple[int, Stage | None]]:
    """(operation, stage) as the log has them, None for the end."""
    found: list[tuple[int, Stage | None]] = []
    for before, after in zip(town.log.values, town.log.values[1:], strict=False):
        for operation in after.operations:
            former = before.operations_by_id.get(operation.id)
            if former is None or former.stage is not operation.stage:
                found.append((operation.id, operation.stage))
        found += [(o.id, None) for o in before.operations if o.id not in after.operations_by_id]
    return found


def join(town: Town) -> None:
    """Node 4 begins to join."""
    filled(town)
    for number in (1, 2, 3):
        assert town.finish(town.begin(number, lambda node: node.data.engine.synced(fill(node)))).error is None
    town.start(4)
    town.until(lambda: bool(town.newest.operations))


def joined(town: Town) -> bool:
    return not town.newest.operations and town.state_of(4) is NodeState.NORMAL


@pytest.fixture(scope="module")
def undisturbed() -> tuple[list[Stage | None], list[object]]:
    """The stages of the join, and who owns what in the end."""
    with Town() as town:
        join(town)
        town.until(lambda: joined(town))
        return [stage for _, stage in stages_entered(town)], owners(town.newest)


@pytest.mark.parametrize("cut_off", [False, True], ids=["crashes", "is cut off"])
@pytest.mark.parametrize("entry", range(7))
def test_scenario_14_a_coordinator_lost_behind_any_entry_changes_nothing_and_its_own_writes_fail(
    entry: int, cut_off: bool, undisturbed: tuple[list[Stage | None], list[object]]
) -> None:
    stages, end = undisturbed
    assert len(stages) == 7, "each entry of the operation has its case"
    with Town() as town:
        join(town)
        town.until(lambda: len(stages_entered(town)) > entry)
        lost, running = town.leader(), town.newest.operations
        process = town.process(lost)
        if cut_off:
            town.world.network.isolate(process.host)
            town.until(lambda: len(stages_entered(town)) > entry + 1 or not town.newest.operations)
            # What it would do next has been done by another one; it has not heard of that.
            old = (running or town.log.values[-2].operations)[0]
            stale = town.finish(town.submit(lost, AdvanceOperation(old.id, old.stage)))
            assert stale.error is not None, "a deposed leader's entry is not committed"
            town.world.network.heal()
        else:
            process.crash("kill")
            town.until(lambda: any(n != lost and town.nodes[f"n{n}"].log.is_leader for n in (1, 2, 3)))
            town.start(lost)
        town.until(lambda: joined(town) and town.ready(1, 2, 3, 4))
        town.agreed(1, 2, 3, 4)
        entered = stages_entered(town)
        assert [stage for _, stage in entered] == stages, "no entry is applied twice, and none is left out"
        assert owners(town.newest) == end
        held = [key for key in keys_of(200) for n in (1, 2, 3, 4) if holds(town.node(n), key)]
        assert all(held.count(key) >= 3 for key in keys_of(200))
