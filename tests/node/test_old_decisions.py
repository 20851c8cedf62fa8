"""What a replica lacks or left undecided brings nothing back that was deleted and purged since."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from lockstep.consensus.paxos import Ballot, Proposal
from lockstep.coordination.ballot_rounds import Patience
from lockstep.coordination.conditional import Decision
from lockstep.node.node import Node
from lockstep.replica.messages import CommitRequest, Place, PrepareRequest, ProposeRequest
from lockstep.sim.plant import replaced
from lockstep.sim.runtime.process import POWER
from lockstep.values.codec import encode
from lockstep.values.errors import DiskRefused, InvalidRequest, StaleEpoch, Unavailable
from lockstep.values.ids import MUTATION_ID_BYTES, Consistency
from lockstep.values.limits import BALLOT_BROUGHT_S, PURGE_AGE_S_MIN, STORE_BATCH_ROWS_MAX
from lockstep.values.rows import ALL_ROWS, Cell, Deletion, Liveness, Mutation, ReadCommand, ReadResult, Row
from lockstep.values.tokens import token_of
from tests.node.support import Outcome, Town
from tests.node.test_purging import GRACE_S, now_s, pairs, purging_town
from tests.node.test_repairs import NODES, done, table_id, write

KEY = 7
NAME = KEY.to_bytes(4, "big")
PATIENCE = Patience(5000, 5000)
SERIAL, QUORUM, ONE = Consistency.SERIAL, Consistency.QUORUM, Consistency.ONE


def command(town: Town) -> ReadCommand:
    token = token_of(NAME)
    return ReadCommand(
        table_id(town.newest), token - 1, token, NAME, ALL_ROWS, (), False, False, 0, 0, now_s(town)
    )


def inserted(asked: ReadCommand, at_us: int) -> Mutation:
    row = Row(b"\x00", Liveness(at_us), None, (Cell(2, b"decided", at_us),))
    unique = at_us.to_bytes(MUTATION_ID_BYTES, "big")
    return Mutation(asked.table_id, asked.right, NAME, unique, at_us, rows=(row,))


def insert(town: Town, number: int) -> None:
    """One that is decided whatever is there."""

    def decide(_: ReadResult, at_us: int) -> Decision:
        return Decision(inserted(asked, at_us), True)

    asked = command(town)

    async def work(node: Node) -> None:
        place = Place(asked.table_id, asked.right, NAME)
        await node.data.conditionals.write(place, asked, decide, SERIAL, QUORUM, PATIENCE)

    done(town, town.begin(number, work))


def reading(town: Town) -> Callable[[Node], Coroutine[Any, Any, ReadResult]]:
    return lambda node: node.data.conditionals.read(command(town), SERIAL, PATIENCE)


def rows_seen(town: Town, number: int) -> int:
    result = done(town, town.begin(number, reading(town)))
    return sum(len(partition.rows) for partition in result.partitions)


def rows_at(town: Town, number: int) -> int:
    """What a node has by itself."""
    result = done(town, town.begin(number, lambda node: node.data.engine.read(command(town))))
    return sum(len(partition.rows) for partition in result.partitions)


def away(town: Town, number: int) -> None:
    """Stop a node, until the others take it for dead."""
    town.process(number).crash()
    node_id = int(town.node(number).context.own_id())
    others = [town.node(other) for other in NODES if other != number]
    town.until(lambda: not any(node.membership.liveness.alive(node_id) for node in others))


def back(town: Town, number: int) -> None:
    town.start(number)
    town.until(lambda: town.ready(number))
    node_id = int(town.node(number).context.own_id())
    town.until(lambda: all(town.node(other).membership.liveness.alive(node_id) for other in NODES))


def test_what_was_deleted_and_purged_since_does_not_return() -> None:
    with purging_town(PURGE_AGE_S_MIN) as town:
        town.process(3).crash()
        insert(town, 1)
        assert rows_seen(town, 1) == 1
        town.start(3)
        town.until(lambda: town.ready(3) and town.node(1).data.hints.store.count() == 0)
        at_us = now_s(town) * 1_000_000 + 5_000_000
        for number in NODES:
            write(town, number, KEY, at_us, deletion=Deletion(at_us, now_s(town)))
        town.wait(PURGE_AGE_S_MIN + 15)
        assert [pairs(town, number) > 0 for number in NODES] == [True, True, False], "ballots are left"
        town.process(2).crash()
        for _ in range(3):
            assert rows_seen(town, 1) == 0
        town.start(2)


def test_a_hint_of_what_was_decided_is_as_old_as_its_ballot() -> None:
    """However long the rounds took: a deletion may have been made meanwhile."""
    with purging_town() as town:
        away(town, 3)
        insert(town, 1)
        [stored] = town.node(1).data.hints.store.page(3)
        assert stored.hint.created_us == stored.hint.mutation.timestamp_us


@pytest.mark.parametrize("fails", [True, False])
def test_a_replica_that_is_alive_and_misses_a_decision_is_left_a_hint(fails: bool) -> None:
    """One that fails at once, one that does not answer when the time of the request is over."""
    with purging_town() as town:
        ballots = town.node(3).data.conditionals.shared.ballots
        answer = ballots.answer

        async def misses(request: Any) -> Any:
            if isinstance(request, PrepareRequest):
                return await answer(request)
            if fails:
                raise DiskRefused("there is no more room than the reserve")
            return await asyncio.Event().wait()

        hints = town.node(1).data.hints
        with replaced((ballots, "answer", misses)):
            insert(town, 1)
            assert rows_at(town, 3) == 0
            town.until(lambda: hints.left == 1 and hints.store.count() == 0)
            assert rows_at(town, 3) == 1


def proposed(town: Town) -> tuple[Place, Proposal]:
    asked, at_us = command(town), now_s(town) * 1_000_000
    at = Ballot(at_us, 1)
    return Place(asked.table_id, asked.right, NAME), Proposal(at, at, encode(inserted(asked, at_us)))


def accept(town: Town, *numbers: int, committed: int = 0) -> int:
    """As if a coordinator had died when some replicas had accepted, and perhaps one knew that this decided;
    the time of the ballot."""
    place, proposal = proposed(town)

    async def work(node: Node) -> None:
        epoch = node.log.cluster.epoch
        reply = await node.data.conditionals.shared.ballots.answer(
            ProposeRequest(epoch, epoch, place, proposal)
        )
        assert reply.accepted

    async def commit(node: Node) -> None:
        epoch = node.log.cluster.epoch
        await node.data.conditionals.shared.ballots.answer(CommitRequest(epoch, epoch, place, proposal))

    for number in numbers:
        done(town, town.begin(number, work))
    if committed:
        done(town, town.begin(committed, commit))
    return proposal.origin.time_us


def begin_lock(town: Town, number: int) -> Outcome:
    """Insert where nothing is: whether it was."""

    def decide(found: ReadResult, at_us: int) -> Decision:
        is_free = not any(partition.rows for partition in found.partitions)
        return Decision(inserted(asked, at_us) if is_free else None, is_free)

    asked = command(town)

    async def work(node: Node) -> bool:
        place = Place(asked.table_id, asked.right, NAME)
        return bool(await node.data.conditionals.write(place, asked, decide, SERIAL, ONE, PATIENCE))

    return town.begin(number, work)


def lock_what_one_replica_alone_knows_to_be_locked() -> None:
    """Its client was told so, at level ONE."""
    with purging_town(PURGE_AGE_S_MIN) as town:
        accept(town, *NODES, committed=1)
        away(town, 1)
        town.wait(BALLOT_BROUGHT_S + 5)
        assert isinstance(town.finish(begin_lock(town, 2)).error, Unavailable)
        assert [rows_at(town, number) for number in (2, 3)] == [0, 0], "its value is brought to nobody"
        back(town, 1)
        assert not done(town, begin_lock(town, 2))
        # Others know it now, too.
        away(town, 1)
        assert not done(town, begin_lock(town, 3))
        assert rows_seen(town, 2) == 1
        back(town, 1)


def test_what_one_replica_alone_knows_to_be_decided_stays_so() -> None:
    lock_what_one_replica_alone_knows_to_be_locked()


def test_what_no_replica_knows_to_be_decided_ends_without_effect() -> None:
    with purging_town(PURGE_AGE_S_MIN) as town:
        accept(town, *NODES)
        town.wait(BALLOT_BROUGHT_S + 5)
        assert rows_seen(town, 2) == 0
        assert done(town, begin_lock(town, 2))


def leave_undecided_what_is_deleted_and_purged() -> None:
    with purging_town(PURGE_AGE_S_MIN) as town:
        at_us = accept(town, 3) + 1_000_000
        for number in NODES:
            write(town, number, KEY, at_us, deletion=Deletion(at_us, now_s(town)))
        assert [pairs(town, number) for number in NODES] == [1, 1, 2]
        town.wait(GRACE_S * 2)
        assert [pairs(town, number) for number in NODES] == [1, 1, 2], "that is too young"
        town.wait(PURGE_AGE_S_MIN)
        assert [pairs(town, number) for number in NODES] == [0, 0, 1], "the ballot is left"
        away(town, 2)
        assert isinstance(town.finish(town.begin(3, reading(town))).error, Unavailable), "node 2 may know"
        back(town, 2)
        assert rows_seen(town, 3) == 0
        away(town, 2)
        assert rows_seen(town, 1) == 0
        # It holds nobody up.
        insert(town, 1)
        assert rows_seen(town, 3) == 1
        back(town, 2)


def test_what_was_left_undecided_does_not_return() -> None:
    leave_undecided_what_is_deleted_and_purged()


def test_what_was_left_undecided_lately_is_finished() -> None:
    with purging_town(PURGE_AGE_S_MIN) as town:
        accept(town, 3)
        town.process(2).crash()
        assert rows_seen(town, 1) == 1
        town.start(2)


def lose_power_behind_a_promise() -> None:
    """It was answered before the disk had it, and what is older is refused all the same."""
    with purging_town() as town:
        asked = command(town)
        place = Place(asked.table_id, asked.right, NAME)
        promised: list[Ballot] = []

        async def promise(node: Node) -> None:
            epoch, now_us = node.log.cluster.epoch, node.context.runtime.clock.wall_us()
            for time_us in (now_us, now_us + 2000):
                request = PrepareRequest(epoch, epoch, place, Ballot(time_us, 1), asked)
                reply = await node.data.conditionals.shared.ballots.answer(request)
                assert reply.result is not None
                promised.append(request.ballot)
            town.process(1).crash(POWER)

        town.begin(1, promise)
        town.until(lambda: not town.process(1).alive)
        assert len(promised) == 2
        back(town, 1)
        at_us = promised[-1].time_us - 1000
        older = Ballot(at_us, 1)

        async def propose(node: Node) -> bool:
            epoch = node.log.cluster.epoch
            proposal = Proposal(older, older, encode(inserted(asked, at_us)))
            request = ProposeRequest(epoch, epoch, place, proposal)
            reply = await node.data.conditionals.shared.ballots.answer(request)
            return bool(reply.accepted)

        assert not done(town, town.begin(1, propose))
        insert(town, 2)
        assert rows_seen(town, 3) == 1


def test_a_promise_outlives_a_loss_of_power() -> None:
    lose_power_behind_a_promise()


def test_who_knows_of_no_repair_brings_nothing_that_may_be_purged_by_it() -> None:
    with purging_town(PURGE_AGE_S_MIN) as town:
        place, proposal = proposed(town)
        town.wait(PURGE_AGE_S_MIN + 15)

        async def commit(node: Node, epochs_behind: int) -> None:
            epoch = node.log.cluster.epoch - epochs_behind
            await node.data.conditionals.shared.ballots.answer(CommitRequest(epoch, epoch, place, proposal))

        behind = town.finish(town.begin(1, lambda node: commit(node, 1)))
        assert isinstance(behind.error, StaleEpoch)
        assert pairs(town, 1) == 0
        # Who knows what this node knows has judged by it.
        done(town, town.begin(1, lambda node: commit(node, 0)))
        assert pairs(town, 1) == 2


def test_what_no_replica_could_apply_is_not_proposed() -> None:
    """It would be decided and never held: nothing were written to its partition with a condition any more."""
    with purging_town() as town:
        asked = command(town)

        def decide(_: ReadResult, at_us: int) -> Decision:
            rows = tuple(Row(b"%08d" % at, Liveness(at_us)) for at in range(STORE_BATCH_ROWS_MAX + 1))
            return Decision(
                Mutation(asked.table_id, asked.right, NAME, bytes(MUTATION_ID_BYTES), at_us, rows=rows), True
            )

        async def work(node: Node) -> None:
            place = Place(asked.table_id, asked.right, NAME)
            await node.data.conditionals.write(place, asked, decide, SERIAL, QUORUM, PATIENCE)

        refused = town.finish(town.begin(1, work))
        insert(town, 2)
        assert rows_seen(town, 1) == 1
        assert isinstance(refused.error, InvalidRequest), refused.error
