from __future__ import annotations

import asyncio
from functools import partial

import msgspec
import pytest

from lockstep.coordination import writes
from lockstep.coordination.writes import Begun
from lockstep.internode import verbs
from lockstep.replica import replica
from lockstep.values.errors import (
    DiskRefused,
    InvalidRequest,
    LockstepError,
    Overloaded,
    Unavailable,
    WriteFailure,
    WriteTimeout,
)
from lockstep.values.ids import Consistency
from lockstep.values.rows import Mutation
from lockstep.values.tokens import TOKEN_MAX

from .clusters import ScriptedNode, Wire, make_cluster, make_nodes, upsert, whole_ring
from .support import run, until

QUORUM = Consistency.QUORUM


def holders(nodes: list[ScriptedNode]) -> list[int]:
    return [node.node for node in nodes if node.engine.applied]


def sent_to(wire: Wire) -> list[str]:
    return sorted(address[0] for address, verb in wire.log if verb == verbs.WRITE)


def test_a_quorum_write_reaches_all_replicas_and_ends_with_two() -> None:
    async def test() -> None:
        wire, nodes = make_nodes(3, whole_ring(5, [1, 2, 3]))
        wire.lose = lambda address, verb: address == ("n3", 1)
        await nodes[0].coordinator.write(upsert(1), QUORUM, 1000)
        assert holders(nodes) == [1, 2]
        assert sent_to(wire) == ["n2", "n3"], "the own replica needs no message"
        assert nodes[0].coordinator.in_flight() == (0, 0)

    run(test)


def test_a_sync_of_many_writes_is_told_in_several_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica, "WRITES_A_TURN", 1)

    async def test() -> None:
        _, nodes = make_nodes(3, whole_ring(5, [1, 2, 3]))
        coordinator = nodes[0].coordinator
        await asyncio.gather(*(coordinator.write(upsert(token), Consistency.ALL, 1000) for token in range(5)))
        assert holders(nodes) == [1, 2, 3] and coordinator.in_flight() == (0, 0)

    run(test)


def test_a_coordinator_that_is_no_replica_writes_through_others() -> None:
    async def test() -> None:
        _, nodes = make_nodes(4, whole_ring(5, [2, 3, 4]))
        await nodes[0].coordinator.write(upsert(1), Consistency.ALL, 1000)
        assert holders(nodes) == [2, 3, 4]

    run(test)


@pytest.mark.parametrize(
    ("level", "required"),
    [
        (Consistency.ONE, 1),
        (Consistency.TWO, 2),
        (Consistency.THREE, 3),
        (QUORUM, 2),
        (Consistency.ALL, 3),
        (Consistency.LOCAL_ONE, 1),
        (Consistency.LOCAL_QUORUM, 2),
    ],
)
@pytest.mark.parametrize("alive", [0, 1, 2, 3])
def test_too_few_live_replicas_is_unavailable_before_anything_is_sent(
    level: Consistency, required: int, alive: int
) -> None:
    async def test() -> None:
        wire, nodes = make_nodes(4, whole_ring(5, [2, 3, 4], dcs={1: "dc1"}))
        nodes[0].dead = {2, 3, 4} - set(range(2, 2 + alive))
        wire.down = {(f"n{node}", 1) for node in nodes[0].dead}
        if alive >= required:
            await nodes[0].coordinator.write(upsert(1), level, 1000)
            return
        with pytest.raises(Unavailable) as caught:
            await nodes[0].coordinator.write(upsert(1), level, 1000)
        assert (caught.value.required, caught.value.alive) == (required, alive)
        assert not wire.log

    run(test)


def test_after_the_deadline_the_counts_are_told() -> None:
    async def test() -> None:
        wire, nodes = make_nodes(3, whole_ring(5, [1, 2, 3]))
        wire.lose = lambda address, verb: True
        with pytest.raises(WriteTimeout) as caught:
            await nodes[0].coordinator.write(upsert(1), Consistency.ALL, 60, "BATCH")
        error = caught.value
        assert (error.consistency, error.received, error.required) == (Consistency.ALL, 1, 3)
        assert error.write_type == "BATCH"
        assert not error.outcome_known

    run(test)


def test_an_unreachable_replica_is_tried_again_within_the_deadline() -> None:
    async def test() -> None:
        wire, nodes = make_nodes(3, whole_ring(5, [1, 2, 3]))
        wire.down = {("n2", 1), ("n3", 1)}
        asyncio.get_running_loop().call_later(0.02, wire.down.clear)
        await nodes[0].coordinator.write(upsert(1), QUORUM, 2000)
        assert 1 in holders(nodes) and len(holders(nodes)) >= 2

    run(test)


def test_definite_failures_of_too_many_replicas_are_a_write_failure() -> None:
    async def test() -> None:
        _, nodes = make_nodes(3, whole_ring(5, [1, 2, 3]))
        for node in nodes[1:]:
            node.engine.sync_error = DiskRefused("full")
        with pytest.raises(WriteFailure) as caught:
            await nodes[0].coordinator.write(upsert(1), QUORUM, 2000)
        assert (caught.value.received, caught.value.required, caught.value.failures) == (1, 2, 2)

    run(test)


def test_one_failing_disk_does_not_fail_a_quorum_write() -> None:
    async def test() -> None:
        _, nodes = make_nodes(3, whole_ring(5, [1, 2, 3]))
        nodes[0].engine.sync_error = DiskRefused("full")
        await nodes[0].coordinator.write(upsert(1), QUORUM, 2000)
        assert {2, 3} <= set(holders(nodes))

    run(test)


def test_the_failure_of_the_own_disk_is_told_as_one_of_the_others() -> None:
    async def test() -> None:
        _, nodes = make_nodes(3, whole_ring(5, [1, 2, 3]))
        nodes[0].engine.sync_error = DiskRefused("full")
        began_s = asyncio.get_running_loop().time()
        with pytest.raises(WriteFailure) as caught:
            await nodes[0].coordinator.write(upsert(1), Consistency.ALL, 9000)
        assert (caught.value.required, caught.value.failures) == (3, 1)
        assert asyncio.get_running_loop().time() - began_s < 9, "without waiting for the deadline"

    run(test)


def test_no_acknowledgement_before_the_write_is_durable() -> None:
    async def test() -> None:
        _, nodes = make_nodes(3, whole_ring(5, [1, 2, 3]))
        for node in nodes:
            node.engine.sync_gate.clear()
        writing = asyncio.ensure_future(nodes[0].coordinator.write(upsert(1), QUORUM, 2000))
        for _ in range(20):
            await asyncio.sleep(0)
        assert holders(nodes) == [1, 2, 3] and not writing.done()
        nodes[1].engine.sync_gate.set()
        for _ in range(20):
            await asyncio.sleep(0)
        assert not writing.done()
        nodes[2].engine.sync_gate.set()
        await writing

    run(test)


def test_a_dropped_table_is_an_invalid_request() -> None:
    async def test() -> None:
        _, nodes = make_nodes(3, whole_ring(5, [1, 2, 3], tables=False))
        with pytest.raises(InvalidRequest):
            await nodes[0].coordinator.write(upsert(1), QUORUM, 1000)

    run(test)


def test_who_answers_after_a_write_ended_for_its_table_is_gone_is_heard_and_changes_nothing() -> None:
    async def test() -> None:
        _, nodes = make_nodes(4, whole_ring(5, [2, 3, 4], dcs={1: "dc1"}))
        problems: list[dict[str, object]] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, problem: problems.append(problem))
        for node in nodes:
            node.engine.sync_gate.clear()
        writing = asyncio.ensure_future(nodes[0].coordinator.write(upsert(1), QUORUM, 2000))
        for _ in range(20):
            await asyncio.sleep(0)
        nodes[0].cluster = whole_ring(6, [2, 3, 4], dcs={1: "dc1"}, tables=False)
        for node in nodes[1:3]:
            node.engine.sync_gate.set()
        with pytest.raises(InvalidRequest):
            await writing
        nodes[3].engine.sync_gate.set()
        for _ in range(20):
            await asyncio.sleep(0)
        assert not problems, problems

    run(test)


# -- changes of ownership -------------------------------------------------------------------------


def test_a_coordinator_behind_learns_of_a_change_that_matters_and_plans_again() -> None:
    async def test() -> None:
        _, nodes = make_nodes(4, whole_ring(5, [1, 2, 3]))
        pending = whole_ring(6, [1, 2, 3], [1, 2, 3, 4], group_epoch=6, dcs={4: "dc1"})
        for node in nodes[1:]:
            node.cluster = pending
        mutation = upsert(1)
        await nodes[0].coordinator.write(mutation, QUORUM, 2000)
        assert nodes[0].cluster.epoch == 6
        assert len(holders(nodes)) >= 3, "two of three and the pending replica"
        for node in nodes:
            assert all(applied == mutation for applied in node.engine.applied), "the identical mutation"

    run(test)


def test_two_old_acknowledgements_do_not_count_after_a_pending_replica_came() -> None:
    """The own node and node 2 accept under epoch 5; node 4 must hear of it under epoch 6."""

    async def test() -> None:
        wire, nodes = make_nodes(4, whole_ring(5, [1, 2, 3]))
        pending = whole_ring(6, [1, 2, 3], [1, 2, 3, 4], group_epoch=6)
        wire.lose = lambda address, verb: address == ("n3", 1)
        nodes[1].engine.sync_gate.clear()
        writing = asyncio.ensure_future(nodes[0].coordinator.write(upsert(1), QUORUM, 2000))
        for _ in range(20):
            await asyncio.sleep(0)
        for node in nodes:
            node.cluster = pending
        nodes[1].engine.sync_gate.set()
        await writing
        assert holders(nodes) == [1, 2, 4]
        assert [len(nodes[i].engine.applied) for i in (0, 1, 3)] == [2, 2, 1], "resent where it did not count"

    run(test)


def test_a_late_answer_to_an_older_attempt_is_asked_again_under_the_new_plan() -> None:
    """Node 2 accepts under epoch 5 and is slow to sync; node 3 tells of epoch 6 and is then lost."""

    async def test() -> None:
        wire, nodes = make_nodes(4, whole_ring(5, [1, 2, 3]))
        pending = whole_ring(6, [1, 2, 3], [1, 2, 3, 4], group_epoch=6)
        nodes[2].cluster = nodes[3].cluster = pending
        nodes[1].engine.sync_gate.clear()
        writing = asyncio.ensure_future(nodes[0].coordinator.write(upsert(1), QUORUM, 2000))
        for _ in range(4):
            await asyncio.sleep(0)
        wire.lose = lambda address, verb: address == ("n3", 1)
        for _ in range(20):
            await asyncio.sleep(0)
        assert nodes[0].cluster is pending and not writing.done()
        nodes[1].cluster = pending
        nodes[1].engine.sync_gate.set()
        await writing
        assert len(nodes[1].engine.applied) == 2

    run(test)


def test_changes_that_do_not_matter_never_use_up_the_plans_of_a_slow_write() -> None:
    async def test() -> None:
        wire, nodes = make_nodes(3, whole_ring(5, [1, 2, 3]))
        wire.down = {("n2", 1), ("n3", 1)}
        tries: list[int] = []

        class Down(set[tuple[str, int]]):
            def __contains__(self, address: object) -> bool:
                tries.append(1)
                nodes[0].cluster = whole_ring(5 + len(tries), [1, 2, 3])
                return len(tries) < 24

        wire.down = Down()
        await nodes[0].coordinator.write(upsert(1), QUORUM, 5000)
        assert len(tries) >= 24 and len(holders(nodes)) >= 2

    run(test)


def test_a_change_elsewhere_in_the_ring_costs_nothing() -> None:
    async def test() -> None:
        before = make_cluster(5, [(0, [1, 2, 3], [1, 2, 3], 1), (TOKEN_MAX, [1, 2, 3], [1, 2, 3], 1)])
        after = make_cluster(6, [(0, [1, 2, 3], [1, 2, 3], 1), (TOKEN_MAX, [1, 2, 3], [1, 2, 3, 4], 6)])
        wire, nodes = make_nodes(4, before)
        for node in nodes[1:]:
            node.cluster = after
        await nodes[0].coordinator.write(upsert(-5), Consistency.ALL, 1000)
        assert nodes[0].cluster is before and not nodes[0].catch_ups
        assert len(sent_to(wire)) == 2

    run(test)


def test_a_replica_behind_does_not_catch_up_for_what_does_not_matter() -> None:
    async def test() -> None:
        _, nodes = make_nodes(3, whole_ring(9, [1, 2, 3], group_epoch=3))
        nodes[1].cluster = whole_ring(4, [1, 2, 3], group_epoch=3)
        await nodes[0].coordinator.write(upsert(1), Consistency.ALL, 1000)
        assert nodes[1].catch_ups == []

    run(test)


def test_a_replica_behind_a_change_that_matters_catches_up_before_it_accepts() -> None:
    async def test() -> None:
        _, nodes = make_nodes(4, whole_ring(6, [1, 2, 3], [1, 2, 3, 4], group_epoch=6))
        nodes[3].cluster = whole_ring(5, [1, 2, 3])
        await nodes[0].coordinator.write(upsert(1), Consistency.ALL, 1000)
        assert nodes[3].catch_ups == [6]
        assert holders(nodes) == [1, 2, 3, 4]

    run(test)


def test_a_replica_that_cannot_catch_up_does_not_accept() -> None:
    async def test() -> None:
        _, nodes = make_nodes(4, whole_ring(6, [1, 2, 3], [1, 2, 3, 4], group_epoch=6))
        nodes[3].cluster = whole_ring(5, [1, 2, 3])
        nodes[3].peers = dict.fromkeys(nodes[3].peers, nodes[3])
        with pytest.raises(WriteTimeout) as caught:
            await nodes[0].coordinator.write(upsert(1), Consistency.ALL, 150)
        assert caught.value.received == 3 and caught.value.required == 4
        assert holders(nodes) == [1, 2, 3]

    run(test)


def test_a_source_that_does_not_deliver_is_asked_again_until_the_change_arrives() -> None:
    async def test() -> None:
        _, nodes = make_nodes(3, whole_ring(5, [1, 2, 3]))
        changed = whole_ring(6, [1, 2, 3], group_epoch=6)
        nodes[1].cluster = nodes[2].cluster = changed
        mine = nodes[0]
        mine.peers = dict.fromkeys(mine.peers, mine)

        def arrive() -> None:
            mine.cluster = changed

        asyncio.get_running_loop().call_later(0.08, arrive)
        await mine.coordinator.write(upsert(1), QUORUM, 2000)
        assert len(mine.catch_ups) >= 1

    run(test)


def test_each_quorum_and_local_quorum_count_per_data_center() -> None:
    async def test() -> None:
        dcs = {1: "a", 2: "a", 3: "a", 4: "b", 5: "b", 6: "b"}
        cluster = whole_ring(5, [1, 2, 3, 4, 5, 6], factors={"a": 3, "b": 3}, dcs=dcs)
        wire, nodes = make_nodes(6, cluster)
        wire.lose = lambda address, verb: address in {("n4", 1), ("n5", 1), ("n6", 1)}
        await nodes[0].coordinator.write(upsert(1), Consistency.LOCAL_QUORUM, 1000)
        with pytest.raises(WriteTimeout) as caught:
            await nodes[0].coordinator.write(upsert(2), Consistency.EACH_QUORUM, 60)
        assert (caught.value.received, caught.value.required) == (2, 4)
        wire.lose = lambda address, verb: address in {("n2", 1), ("n3", 1)}
        with pytest.raises(WriteTimeout) as caught:
            await nodes[0].coordinator.write(upsert(3), Consistency.LOCAL_QUORUM, 60)
        assert (caught.value.received, caught.value.required) == (1, 2)
        nodes[0].dead = {5, 6}
        with pytest.raises(Unavailable):
            await nodes[0].coordinator.write(upsert(4), Consistency.EACH_QUORUM, 60)

    run(test)


# -- the replica alone ----------------------------------------------------------------------------


def test_drain_waits_for_what_was_accepted_under_older_epochs_and_not_for_later_writes() -> None:
    async def test() -> None:
        _, (node,) = make_nodes(1, whole_ring(5, [1], factors={"": 1}))
        node.engine.sync_gate.clear()
        first = asyncio.ensure_future(node.coordinator.write(upsert(1), Consistency.ONE, 5000))
        await asyncio.sleep(0)
        node.cluster = whole_ring(6, [1], factors={"": 1})
        draining = asyncio.ensure_future(node.replica.drain(6))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not draining.done() and node.replica.unfinished() == 1
        node.engine.sync_gate.set()
        await draining
        assert node.replica.unfinished() == 0
        await first
        await node.replica.drain(6)
        told = node.runtime.probes.reached  # type: ignore[attr-defined]
        reached = [label for label in told if label.startswith("replica.")]
        assert reached == [
            "replica.write.accepted",
            "replica.write.applied",
            "replica.drain",
            "replica.write.synced",
            "replica.drain",
        ]

    run(test)


def test_drain_fails_when_the_disk_did() -> None:
    async def test() -> None:
        _, (node,) = make_nodes(1, whole_ring(5, [1], factors={"": 1}))
        node.engine.sync_error = DiskRefused("full")
        with pytest.raises(WriteFailure):
            await node.coordinator.write(upsert(1), Consistency.ONE, 500)
        with pytest.raises(DiskRefused):
            await node.replica.drain(5)

    run(test)


@pytest.mark.parametrize(
    ("bound", "most"), [("WRITES_IN_FLIGHT_MAX", 50), ("WRITES_BYTES_IN_FLIGHT_MAX", 500)]
)
def test_too_many_writes_in_flight_are_refused(
    bound: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writes, bound, most)

    async def test() -> None:
        wire, nodes = make_nodes(2, whole_ring(5, [2], factors={"": 1}, dcs={1: "dc1"}))
        wire.lose = lambda address, verb: True
        futures = []
        with pytest.raises(Overloaded):
            for _ in range(most + 1):
                futures.append(nodes[0].coordinator._writes.begin(upsert(1), Consistency.ONE, 60_000))
        in_flight = nodes[0].coordinator._writes
        if bound == "WRITES_IN_FLIGHT_MAX":
            assert len(futures) == most
        else:
            assert in_flight.bytes_in_flight >= most > in_flight.bytes_in_flight * (1 - 1 / len(futures))
        nodes[0].coordinator.stop()
        outcomes = await asyncio.gather(*futures, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {WriteTimeout} and in_flight.bytes_in_flight == 0

    run(test)


def test_a_stale_request_is_refused_in_the_same_step_as_it_would_apply() -> None:
    async def test() -> None:
        wire, nodes = make_nodes(3, whole_ring(5, [1, 2, 3]))

        def move(address: tuple[str, int], verb: int) -> None:
            for node in nodes[1:]:
                node.cluster = whole_ring(7, [1, 2], group_epoch=7, factors={"": 3}, dcs={3: "dc1"})

        wire.before = move
        await nodes[0].coordinator.write(upsert(1), QUORUM, 2000)
        assert not nodes[2].engine.applied, "node 3 gave the range up before the write came"
        assert nodes[0].catch_ups[0] == 7

    run(test)


def test_writes_that_begin_together_are_all_sent_before_one_is_applied_and_each_hears_its_own_end() -> None:
    async def test() -> None:
        wire, nodes = make_nodes(3, whole_ring(5, [1, 2, 3]))
        one, ends = nodes[0], dict[int, LockstepError | None]()
        applied_at: list[int] = []
        apply = one.engine.apply

        def noting(mutation: Mutation, *, first_epoch: int | None) -> int:
            applied_at.append(len(sent_to(wire)))
            if mutation.rows[0].clustering == b"defect":
                raise ZeroDivisionError
            return apply(mutation, first_epoch=first_epoch)

        one.engine.apply = noting  # type: ignore[method-assign]
        unknown = msgspec.structs.replace(upsert(2), table_id=404)
        row = msgspec.structs.replace(upsert(3).rows[0], clustering=b"defect")
        defect = msgspec.structs.replace(upsert(3), rows=(row,))
        writes = [
            Begun(mutation, QUORUM, partial(ends.__setitem__, number))
            for number, mutation in enumerate((upsert(1), unknown, defect, upsert(4)))
        ]
        one.coordinator.submit_batch(writes, 1000)
        assert applied_at == [6, 6, 6] and list(ends) == [1] and isinstance(ends[1], InvalidRequest)
        await until(lambda: len(ends) == len(writes))
        assert [ends[number] for number in (0, 2, 3)] == [None] * 3, "the defect was here alone"
        failures = one.runtime.tasks.failures  # type: ignore[attr-defined]
        assert [type(failure) for failure in failures] == [ZeroDivisionError]
        await one.coordinator.write(upsert(5), QUORUM, 1000)
        assert len(applied_at) == 4, "a write that begins alone is applied at once"

    run(test)
