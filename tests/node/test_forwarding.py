"""Writes to another data centre: one message, passed on there, and what makes up for a lost one."""

from __future__ import annotations

import pytest

from lockstep.coordination.forwarding import Forwarding
from lockstep.internode.own_side import ExcludedNodes
from lockstep.metadata.schema_change import ChangeSchema
from lockstep.node.node import Node
from lockstep.schema.changes import CreateKeyspace, CreateTable, NewColumn
from lockstep.schema.model import ColumnKind
from lockstep.sim.door import mutation_for
from lockstep.sim.load.history import Change
from lockstep.values.ids import Consistency
from tests.node.support import Outcome, Town
from tests.node.test_requests_while_moving import table_of

TIMEOUT_MS = 2000
EACH = Consistency.EACH_QUORUM


def two_data_centres(seed: int) -> Town:
    """Node 1 in one data centre, nodes 2 to 4 in another one; all are replicas."""
    town = Town(seed, founders=4)
    for number in (2, 3, 4):
        town.placement[f"n{number}"] = 'num_tokens=2\ndc="dc2"'
    town.found()
    options = (("class", "NetworkTopologyStrategy"), ("dc1", "1"), ("dc2", "3"))
    columns = (
        NewColumn("pk", "blob", ColumnKind.PARTITION_KEY, 0),
        NewColumn("ck", "int", ColumnKind.CLUSTERING, 0),
        NewColumn("v", "text"),
    )
    for change in (
        CreateKeyspace("ks", options),
        CreateTable("ks", "t", "00000000-0000-4000-8000-000000000001", columns),
    ):
        outcome = town.finish(town.submit(1, ChangeSchema(change)))
        assert outcome.error is None, outcome.error
    town.agreed(1, 2, 3, 4)
    return town


def write(town: Town, number: int, level: Consistency, key: bytes = b"k") -> Outcome:
    async def work(node: Node) -> None:
        at = node.runtime.clock.wall_us()
        change = Change("t", key, at, level, TIMEOUT_MS, ((0, b"v"),))
        made = mutation_for(change, table_of(node), node.data.new_mutation_id(), 1)
        await node.data.coordinator.write(made, level, TIMEOUT_MS)

    return town.finish(town.begin(number, work))


def forwarding(town: Town) -> Forwarding:
    found = town.node(1).data.coordinator.writes.forwarding
    assert found is not None
    return found


@pytest.mark.parametrize("level", [EACH, Consistency.ALL, Consistency.LOCAL_QUORUM, Consistency.QUORUM])
def test_another_data_centre_gets_one_message_and_all_its_replicas_answer(level: Consistency) -> None:
    with two_data_centres(31) as town:
        assert write(town, 1, level).error is None
        town.wait(0.5)
        reached = town.world.probes.process_counts
        assert [reached.get((f"n{n}", "replica.write.accepted"), 0) for n in (1, 2, 3, 4)] == [1, 1, 1, 1]
        assert (
            forwarding(town).spared
            == 2
            == sum(reached.get((f"n{n}", "forward.passed_on"), 0) for n in (2, 3, 4))
        )
        writes = town.node(1).data.coordinator.writes
        assert (len(writes.lingering), writes.bytes_in_flight) == (0, 0), "everybody has answered"
        assert town.node(1).data.hints.store.count() == 0
        assert write(town, 2, level).error is None
        other = town.node(2).data.coordinator.writes.forwarding
        assert other is not None and other.spared == 0, "one replica there is sent to directly"


def test_what_a_forwarder_does_not_pass_on_is_sent_again_by_the_coordinator() -> None:
    with two_data_centres(32) as town:
        for one in (2, 3, 4):
            for other in (2, 3, 4):
                if one != other:
                    town.world.network.block(f"127.0.0.{one}", f"127.0.0.{other}")
        outcome = write(town, 1, EACH)
        assert outcome.error is None
        assert 0.9 < outcome.done_s - outcome.begun_s < TIMEOUT_MS / 1000, "half of the time is left for it"


def test_a_forwarder_that_is_gone_costs_a_retry_and_leaves_a_hint() -> None:
    with two_data_centres(33) as town:
        keys = [b"k%d" % number for number in range(6)]
        town.process(3).crash()
        for key in keys:
            outcome = write(town, 1, EACH, key)
            assert outcome.error is None and outcome.done_s - outcome.begun_s < 1.5
        town.wait(TIMEOUT_MS / 1000 + 0.5)
        assert town.node(1).data.hints.store.count() == len(keys)
        town.start(3)
        town.until(lambda: town.ready(3) and town.node(1).data.hints.store.count() == 0)


def shut(town: Town, number: int, *others: int) -> None:
    """These nodes know that a node is excluded."""
    for other in others:
        node = town.node(number)
        known = ExcludedNodes(
            frozenset((node.context.identity.value.host_id,)), frozenset((node.context.address,))
        )
        town.node(other).context.internode.own.excluded = known


def test_a_replica_takes_nothing_of_an_excluded_node_by_way_of_one_that_does_not_know() -> None:
    with two_data_centres(34) as town:
        shut(town, 1, 3, 4)
        for number in range(6):
            assert write(town, 1, Consistency.ONE, b"f%d" % number).error is None, "its own replica"
        town.wait(TIMEOUT_MS / 1000 + 0.5)
        reached = town.world.probes.process_counts
        refused = [reached.get((f"n{number}", "forward.origin_shut_out"), 0) for number in (3, 4)]
        assert sum(refused) == reached.get(("n2", "forward.passed_on"), 0) > 0
        assert [reached.get((f"n{number}", "replica.write.accepted"), 0) for number in (3, 4)] == [0, 0]


def test_replicas_behind_an_excluded_one_are_asked_at_once() -> None:
    with two_data_centres(35) as town:
        for excluded in (2, 3, 4):
            shut(town, excluded, 1)
            outcome = write(town, 1, EACH, b"x%d" % excluded)
            assert outcome.error is None
            assert outcome.done_s - outcome.begun_s < TIMEOUT_MS / 4000
