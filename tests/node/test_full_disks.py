"""A disk that runs full: writes are refused in time and for certain, and everything else goes on."""

from __future__ import annotations

from lockstep.node.node import Node
from lockstep.sim.door import command_for, mutation_for
from lockstep.sim.load.history import Change, Look
from lockstep.values.errors import Overloaded, WriteFailure
from lockstep.values.ids import Consistency
from lockstep.values.limits import WRITES_BYTES_IN_FLIGHT_MAX
from tests.node.support import Outcome, Town
from tests.node.test_requests_while_moving import founded, table_of

QUORUM = Consistency.QUORUM
TIMEOUT_MS = 1000
RESERVE = "[storage]\nreserve_bytes=1000000\n"


def write(town: Town, number: int, key: bytes) -> Outcome:
    async def work(node: Node) -> None:
        at = node.runtime.clock.wall_us()
        change = Change("t", key, at, QUORUM, TIMEOUT_MS, ((0, b"v"),))
        made = mutation_for(change, table_of(node), node.data.new_mutation_id(), 1)
        await node.data.coordinator.write(made, QUORUM, TIMEOUT_MS)

    return town.finish(town.begin(number, work))


def rows(town: Town, number: int, key: bytes) -> int:
    async def work(node: Node) -> int:
        command = command_for(Look("t", key, None, QUORUM, TIMEOUT_MS), table_of(node), 1, None)
        return len((await node.data.coordinator.read(command, QUORUM, TIMEOUT_MS)).partitions)

    outcome = town.finish(town.begin(number, work))
    assert outcome.error is None, outcome.error
    return int(outcome.value)


def leave_free(town: Town, number: int, free_bytes: int) -> None:
    disk = town.process(number).disk
    disk.settings.capacity_bytes = disk.used_bytes() + free_bytes
    town.wait(1)


def again(town: Town) -> None:
    """Start all nodes anew, with a reserve."""
    for number in (1, 2, 3):
        town.extra_lines[f"n{number}"] = RESERVE
        town.process(number).crash()
    town.start(1, 2, 3)
    town.until(lambda: town.ready(1, 2, 3))
    town.wait(1)


def test_full_disks_refuse_writes_while_reads_work_and_take_them_again_when_there_is_room() -> None:
    with founded(21) as town:
        again(town)
        assert write(town, 1, b"before").error is None
        leave_free(town, 2, 900_000)
        assert write(town, 1, b"one full").error is None, "two of three are enough"
        town.until(lambda: town.node(1).data.hints.store.count() == 1)
        leave_free(town, 3, 900_000)
        failure = write(town, 1, b"two full").error
        assert isinstance(failure, WriteFailure) and (failure.failures, failure.required) == (2, 2)
        assert rows(town, 2, b"before") == rows(town, 3, b"one full") == 1
        assert town.ready(1, 2, 3), "nobody stops serving"
        for number in (2, 3):
            leave_free(town, number, 2_000_000)
        assert write(town, 3, b"after").error is None
        town.until(lambda: town.node(1).data.hints.store.count() == 0)


def test_a_node_coordinates_no_more_than_so_many_bytes_of_writes() -> None:
    with founded(22) as town:
        town.node(1).data.coordinator.writes.bytes_in_flight += WRITES_BYTES_IN_FLIGHT_MAX
        refused = write(town, 1, b"more").error
        assert isinstance(refused, Overloaded)
        assert write(town, 2, b"elsewhere").error is None
        town.wait(2)
        town.node(1).data.coordinator.writes.bytes_in_flight -= WRITES_BYTES_IN_FLIGHT_MAX
        assert write(town, 1, b"again").error is None
        town.wait(2)
        in_flight = [town.node(number).data.coordinator.writes.bytes_in_flight for number in (1, 2, 3)]
        assert in_flight == [0, 0, 0], "what has ended is not counted"


def test_with_periodic_syncs_a_crash_takes_back_at_most_a_period() -> None:
    with founded(23) as town:
        for number in (1, 2, 3):
            town.extra_lines[f"n{number}"] = (
                '[storage]\ncommitlog_sync="periodic"\ncommitlog_sync_period_ms=2000\n'
            )
            town.process(number).crash()
        town.start(1, 2, 3)
        town.until(lambda: town.ready(1, 2, 3))
        town.wait(1)  # By then they have heard of each other.
        assert write(town, 1, b"old").error is None
        town.wait(3)
        assert write(town, 1, b"new").error is None
        for number in (1, 2, 3):
            town.process(number).crash("power")
        town.start(1, 2, 3)
        town.until(lambda: town.ready(1, 2, 3))
        town.wait(1)
        assert rows(town, 1, b"old") == 1
        assert rows(town, 1, b"new") == 0, "nobody waited for a sync"
