"""Random statements through a driver, on a real node with its real store."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from lockstep.sim.fuzz.changes import Batch, Change
from lockstep.sim.fuzz.driver import Script, Step, Tally, draw_script, in_cql, play
from lockstep.sim.fuzz.queries import FUNCTIONS
from lockstep.testing import Cluster
from tests.server.driver_door import DriverDoor


@pytest.fixture(scope="module")
def door() -> Iterator[DriverDoor]:
    with Cluster(1, settings={"functions": {"user_defined_functions_enabled": True}}) as cluster:
        for statement in (f"CREATE KEYSPACE f WITH replication = {cluster.replication}", *FUNCTIONS):
            cluster.execute(statement)
        session = cluster.connect()
        yield DriverDoor(session)
        session.cluster.shutdown()


def lasting(script: Script) -> Script:
    """The script without what expires: nobody knows in which second a real node runs a statement."""
    table = msgspec.structs.replace(script.table, default_ttl=0)
    steps = tuple(step for step in script.steps if not any(part.ttl_s for part in parts(step)))
    return msgspec.structs.replace(script, table=table, steps=steps)


def parts(step: Step) -> tuple[Change, ...]:
    if isinstance(step, Batch):
        return step.changes
    return (step,) if isinstance(step, Change) else ()


@pytest.mark.parametrize("number", range(4))
def test_a_driver_and_a_real_node_agree_with_the_model(door: DriverDoor, number: int) -> None:
    tally = Tally()
    found = play(lasting(draw_script(5, number, statements=150)), door, tally)
    assert found is None, in_cql(found)
    assert tally.statements > 100
