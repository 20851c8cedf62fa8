"""What a replica lacks or left undecided brings nothing back that was deleted and purged since."""

from __future__ import annotations

from lockstep.consensus.paxos import Ballot, Proposal
from lockstep.node.node import Node
from lockstep.replication.ballot_messages import CommitRequest, Place, ProposeRequest
from lockstep.replication.ballot_rounds import Patience
from lockstep.replication.conditional import Decision
from lockstep.values.codec import encode
from lockstep.values.errors import StaleEpoch
from lockstep.values.ids import MUTATION_ID_BYTES, Consistency
from lockstep.values.limits import PURGE_AGE_S_MIN
from lockstep.values.rows import ALL_ROWS, Cell, Deletion, Liveness, Mutation, ReadCommand, ReadResult, Row
from lockstep.values.tokens import token_of
from tests.node.support import Town
from tests.node.test_purging import GRACE_S, now_s, pairs, purging_town
from tests.node.test_repairs import NODES, done, table_id, write

KEY = 7
NAME = KEY.to_bytes(4, "big")
PATIENCE = Patience(5000, 5000)
SERIAL, QUORUM = Consistency.SERIAL, Consistency.QUORUM


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
        await node.conditionals.write(place, asked, decide, SERIAL, QUORUM, PATIENCE)

    done(town, town.begin(number, work))


def rows_seen(town: Town, number: int) -> int:
    async def work(node: Node) -> ReadResult:
        return await node.conditionals.read(command(town), SERIAL, PATIENCE)

    return sum(len(partition.rows) for partition in done(town, town.begin(number, work)).partitions)


def test_what_was_deleted_and_purged_since_does_not_return() -> None:
    with purging_town(PURGE_AGE_S_MIN) as town:
        town.process(3).crash()
        insert(town, 1)
        assert rows_seen(town, 1) == 1
        town.start(3)
        town.until(lambda: town.ready(3) and town.node(1).hints.store.count() == 0)
        at_us = now_s(town) * 1_000_000 + 5_000_000
        for number in NODES:
            write(town, number, KEY, at_us, deletion=Deletion(at_us, now_s(town)))
        town.wait(PURGE_AGE_S_MIN + 15)
        assert [pairs(town, number) > 0 for number in NODES] == [True, True, False], "ballots are left"
        town.process(2).crash()
        for _ in range(3):
            assert rows_seen(town, 1) == 0
        town.start(2)


def proposed(town: Town) -> tuple[Place, Proposal]:
    asked, at_us = command(town), now_s(town) * 1_000_000
    at = Ballot(at_us, 1)
    return Place(asked.table_id, asked.right, NAME), Proposal(at, at, encode(inserted(asked, at_us)))


def accept(town: Town, number: int) -> int:
    """As if a coordinator had died when one replica had accepted; the time of the ballot."""
    place, proposal = proposed(town)

    async def work(node: Node) -> None:
        epoch = node.cluster.epoch
        reply = await node.conditionals.ballots.answer(ProposeRequest(epoch, epoch, place, proposal))
        assert reply.accepted

    done(town, town.begin(number, work))
    return proposal.origin.time_us


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
        town.process(2).crash()
        assert rows_seen(town, 1) == 0
        assert rows_seen(town, 3) == 0
        # It holds nobody up.
        insert(town, 1)
        assert rows_seen(town, 3) == 1
        town.start(2)


def test_what_was_left_undecided_does_not_return() -> None:
    leave_undecided_what_is_deleted_and_purged()


def test_what_was_left_undecided_lately_is_finished() -> None:
    with purging_town(PURGE_AGE_S_MIN) as town:
        accept(town, 3)
        town.process(2).crash()
        assert rows_seen(town, 1) == 1
        town.start(2)


def test_who_knows_of_no_repair_brings_nothing_that_may_be_purged_by_it() -> None:
    with purging_town(PURGE_AGE_S_MIN) as town:
        place, proposal = proposed(town)
        town.wait(PURGE_AGE_S_MIN + 15)

        async def commit(node: Node, epochs_behind: int) -> None:
            epoch = node.cluster.epoch - epochs_behind
            await node.conditionals.ballots.answer(CommitRequest(epoch, epoch, place, proposal))

        behind = town.finish(town.begin(1, lambda node: commit(node, 1)))
        assert isinstance(behind.error, StaleEpoch)
        assert pairs(town, 1) == 0
        # Who knows what this node knows has judged by it.
        done(town, town.begin(1, lambda node: commit(node, 0)))
        assert pairs(town, 1) == 2
