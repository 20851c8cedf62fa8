"""Logged batches: all or nothing, wherever their coordinator dies, and whoever keeps them goes meanwhile."""

from __future__ import annotations

import pytest

from lockstep.handoff import batch_store
from lockstep.handoff.batch_store import KeepBatch
from lockstep.node.node import Node
from lockstep.sim.door import command_for, mutation_for
from lockstep.sim.load.history import Change, Look
from lockstep.sim.plant import replaced
from lockstep.sim.runtime.probes import CrashRule
from lockstep.values.errors import LockstepError, WriteTimeout
from lockstep.values.ids import Consistency, NodeId
from tests.node.support import Outcome, Town, leave
from tests.node.test_requests_while_moving import founded, table_of

TIMEOUT_MS = 1000
KEYS = [b"b%d" % number for number in range(6)]
QUORUM = Consistency.QUORUM


def begin_batch(town: Town, number: int, level: Consistency = QUORUM) -> Outcome:
    async def work(node: Node) -> None:
        at, made = node.runtime.clock.wall_us(), []
        for key in KEYS:
            change = Change("t", key, at, level, TIMEOUT_MS, ((0, b"v"),))
            made.append(mutation_for(change, table_of(node), node.data.new_mutation_id(), 1))
        await node.data.batches.write(made, level, TIMEOUT_MS)

    return town.begin(number, work)


def seen(town: Town, number: int) -> int:
    """How many partitions of the batch a quorum has."""

    async def work(node: Node) -> int:
        found = 0
        for key in KEYS:
            look = Look("t", key, None, QUORUM, TIMEOUT_MS)
            command = command_for(look, table_of(node), 1, None)
            found += bool((await node.data.coordinator.read(command, QUORUM, TIMEOUT_MS)).partitions)
        return found

    outcome = town.finish(town.begin(number, work))
    assert outcome.error is None, outcome.error
    return int(outcome.value)


def kept(town: Town, *numbers: int) -> int:
    return sum(len(town.node(number).data.batch_store) for number in numbers)


@pytest.mark.parametrize("kind", ["kill", "power"])
@pytest.mark.parametrize(
    ("label", "hit"),
    [
        ("batches.logged", 1),
        ("replica.write.accepted", 1),
        ("replica.write.accepted", 4),
        ("replica.write.synced", 1),
        ("batches.written", 1),
    ],
)
def test_a_batch_is_all_or_nothing_when_its_coordinator_dies(label: str, hit: int, kind: str) -> None:
    with founded(11) as town:
        town.world.probes.add(CrashRule(label=label, process="n1", hit=hit, kind=kind))
        begin_batch(town, 1)
        town.until(lambda: not town.process(1).alive)
        town.wait(1)
        late = seen(town, 2)
        if label == "batches.written":
            assert late == len(KEYS), "a batch that was acknowledged"
        town.until(lambda: kept(town, 2, 3) == 0)
        assert seen(town, 2) == len(KEYS)
        # What the dead coordinator lacks has been left for it.
        town.start(1)
        town.until(lambda: town.ready(1) and town.node(2).data.hints.store.count() == 0)
        town.wait(1)  # By then it has heard of the others.
        assert seen(town, 1) == len(KEYS)


def lose_the_coordinator_at_its_first_write() -> None:
    with founded(16) as town:
        town.world.probes.add(CrashRule(label="replica.write.accepted", process="n1", hit=1))
        begin_batch(town, 1)
        town.until(lambda: not town.process(1).alive)
        town.until(lambda: kept(town, 2, 3) == 0)
        town.wait(1)
        assert seen(town, 2) == len(KEYS)


def test_a_batch_is_written_when_its_coordinator_dies_before_the_first_replica_hears_of_it() -> None:
    lose_the_coordinator_at_its_first_write()


def test_what_a_late_replay_leaves_for_others_is_as_old_as_the_batch() -> None:
    """What deleted the batch's rows since may be purged after their grace time: no hint is sent then."""
    with founded(18) as town:
        town.world.probes.add(CrashRule(label="batches.logged", process="n1", hit=1))
        begin_batch(town, 1)
        town.until(lambda: not town.process(1).alive)
        for number in (2, 3):
            town.process(number).crash()
        town.wait(120)
        town.start(2, 3)
        town.until(lambda: town.ready(2, 3) and kept(town, 2, 3) == 0)
        stores = [town.node(number).data.hints.store for number in (2, 3)]
        assert sum(store.count() for store in stores) >= len(KEYS), "for the one that is away"
        now_us = town.node(2).runtime.clock.wall_us()
        for store in stores:
            oldest_us = store.oldest_us()
            assert oldest_us is None or now_us - oldest_us > 120_000_000
            assert all(now_us - one.since_us < 120_000_000 for one in store.pending.values())
        assert len({one.key[6:] for store in stores for one in store.page(1)}) == len(KEYS)


def test_batches_that_cannot_be_written_keep_no_others_waiting() -> None:
    with founded(19) as town:
        store = town.node(2).data.batch_store
        batches = [KeepBatch(bytes([number]) * 16, 1 + number, ()) for number in range(5)]
        tried: list[int] = []

        async def keep_all(_node: Node) -> None:
            for batch in batches:
                await store.keep(batch)

        async def write(_mutations: object, made_us: int) -> bool:
            tried.append(made_us)
            return made_us == 5

        town.finish(town.begin(2, keep_all))
        owed = (store, "_owed", lambda batch: [batch])
        with replaced((batch_store, "BATCH_LOG_PAGE", 2), (store, "_write", write), owed):
            town.until(lambda: len(store) == 4)
        assert tried == [1, 2, 3, 4, 5, *tried[5:]], "each in its turn"


def test_a_batch_whose_log_is_not_acknowledged_sends_nothing_to_replicas_and_says_so() -> None:
    with founded(12) as town:
        town.world.probes.add(CrashRule(label="batches.kept", process="n2", hit=1))
        town.world.probes.add(CrashRule(label="batches.kept", process="n3", hit=1))
        outcome = town.finish(begin_batch(town, 1))
        assert isinstance(outcome.error, WriteTimeout) and outcome.error.write_type == "BATCH_LOG"
        told, _, causes = outcome.error.message.partition(" Failures: ")
        assert told == "Operation timed out - received only 1 responses."
        assert "NODE_DOWN from /127.0.0.2 (PEER_UNREACHABLE: " in causes and "/127.0.0.3" in causes
        town.wait(1)
        assert kept(town, 1) == 0


def write_batches_while_one_node_is_silent(strike: str = "pause") -> None:
    with founded(20) as town:
        process = town.process(3)
        strikes = {"pause": process.pause, "kill": process.crash}
        strikes[strike]()
        for number in range(6):
            begun_s = town.world.now_s()
            outcome = town.finish(begin_batch(town, 1 + number % 2))
            assert outcome.error is None, f"batch {number}: {outcome.error}"
            assert town.world.now_s() - begun_s < TIMEOUT_MS / 1000 / 2
        town.until(lambda: kept(town, 1, 2) == 0)


@pytest.mark.parametrize("strike", ["pause", "kill"])
def test_batches_are_written_while_one_of_three_nodes_is_silent(strike: str) -> None:
    """Single writes at QUORUM go on meanwhile, so batches do as well, before anybody suspects the node."""
    write_batches_while_one_node_is_silent(strike)


def test_a_coordinator_never_keeps_a_batch_alone_while_others_are_there() -> None:
    with founded(21) as town:
        for number in (2, 3):
            town.process(number).pause()
        outcome = town.finish(begin_batch(town, 1))
        assert isinstance(outcome.error, WriteTimeout) and outcome.error.write_type == "BATCH_LOG"
        assert kept(town, 1) == 0, "what was not sent is not owed"


def test_a_batch_in_time_is_forgotten_and_never_replayed() -> None:
    with founded(13) as town:
        assert town.finish(begin_batch(town, 1)).error is None
        town.until(lambda: kept(town, 1, 2, 3) == 0, 1)
        town.wait(6)
        assert sum(town.node(number).data.batch_store.replayed for number in (1, 2, 3)) == 0


def test_the_batch_log_survives_a_power_loss_of_all_that_keep_it() -> None:
    with founded(14) as town:
        town.world.probes.add(CrashRule(label="batches.logged", process="n1", hit=1, kind="power"))
        begin_batch(town, 1)
        town.until(lambda: not town.process(1).alive)
        for number in (2, 3):
            town.process(number).crash("power")
        town.start(1, 2, 3)
        town.until(lambda: town.ready(1, 2, 3))
        town.until(lambda: kept(town, 1, 2, 3) == 0)
        assert seen(town, 3) == len(KEYS)


def test_a_node_that_leaves_writes_what_it_keeps_before_it_goes() -> None:
    with founded(15) as town:
        town.start(4)
        town.until(lambda: town.ready(4))
        town.world.probes.add(CrashRule(label="batches.logged", process="n1", hit=1))
        leaver = NodeId(town.node(3).context.own_id())
        assert town.finish(town.submit(2, leave(leaver))).error is None
        begin_batch(town, 1)
        town.until(lambda: not town.process(1).alive)

        async def give(node: Node) -> LockstepError | None:
            await node.data.batch_store.replay_due(everything=True)
            return None

        for number in (2, 3, 4):
            town.finish(town.begin(number, give))
        assert kept(town, 2, 3, 4) == 0
        assert seen(town, 2) == len(KEYS)
