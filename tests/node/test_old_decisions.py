"""A decision that a replica lacks brings nothing back that was deleted and purged since."""

from __future__ import annotations

from lockstep.node.node import Node
from lockstep.replication.ballot_messages import Place
from lockstep.replication.ballot_rounds import Patience
from lockstep.replication.conditional import Decision
from lockstep.values.ids import MUTATION_ID_BYTES, Consistency
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


def insert(town: Town, number: int) -> None:
    """One that is decided whatever is there."""

    def decide(_: ReadResult, at_us: int) -> Decision:
        row = Row(b"\x00", Liveness(at_us), None, (Cell(2, b"decided", at_us),))
        unique = at_us.to_bytes(MUTATION_ID_BYTES, "big")
        return Decision(Mutation(asked.table_id, asked.right, NAME, unique, at_us, rows=(row,)), True)

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
    with purging_town() as town:
        town.process(3).crash()
        insert(town, 1)
        assert rows_seen(town, 1) == 1
        town.start(3)
        town.until(lambda: town.ready(3) and town.node(1).hints.store.count() == 0)
        at_us = now_s(town) * 1_000_000 + 5_000_000
        for number in NODES:
            write(town, number, KEY, at_us, deletion=Deletion(at_us, now_s(town)))
        town.wait(GRACE_S + 60)
        assert [pairs(town, number) > 0 for number in NODES] == [True, True, False], "ballots are left"
        town.process(2).crash()
        for _ in range(3):
            assert rows_seen(town, 1) == 0
        town.start(2)
