"""Schema changes that race with each other, with data and with faults, on real nodes in a simulated world."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lockstep.metadata.schema_change import ChangeSchema
from lockstep.node.node import Node
from lockstep.schema.changes import (
    ALREADY_EXISTS,
    AddColumns,
    CreateTable,
    DropColumns,
    DropTable,
    NewColumn,
    SchemaChange,
    validate,
)
from lockstep.schema.model import ColumnKind, Table
from lockstep.sim.door import clustering_bytes
from lockstep.values.errors import LockstepError, Rejected
from lockstep.values.ids import Consistency
from lockstep.values.rows import ALL_ROWS, Cell, Liveness, Mutation, ReadCommand, Row
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN, token_of
from tests.node.support import Outcome, Town, keyspace

SEEDS = (1, 2, 3)
KEYS = [f"key{number}".encode() for number in range(40)]
TIMEOUT_MS = 2_000


def create(number: int, extra: str = "") -> CreateTable:
    columns = [
        NewColumn("pk", "blob", ColumnKind.PARTITION_KEY, 0),
        NewColumn("ck", "int", ColumnKind.CLUSTERING, 0),
        NewColumn("v", "text"),
    ]
    if extra:
        columns.append(NewColumn(extra, "text"))
    return CreateTable("ks", "t", f"00000000-0000-4000-8000-{number:012}", tuple(columns))


def founded(seed: int) -> Town:
    town = Town(seed)
    town.found()
    town.finish(town.submit(1, keyspace("ks")))
    town.agreed(1, 2, 3)
    return town


def present(node: Node) -> Table | None:
    return node.log.cluster.schema.table("ks", "t")


def submitted(town: Town, *changes: tuple[int, SchemaChange]) -> list[Outcome]:
    """All at one moment, each on its node; their ends."""
    outcomes = [town.submit(number, ChangeSchema(change)) for number, change in changes]
    town.until(lambda: all(outcome.done for outcome in outcomes))
    town.agreed(1, 2, 3)
    validate(town.newest.schema)
    return outcomes


@pytest.mark.parametrize("seed", SEEDS)
def test_one_of_two_tables_of_one_name_wins_and_the_other_client_is_told(seed: int) -> None:
    with founded(seed) as town:
        outcomes = submitted(town, (1, create(1, "one")), (2, create(2, "two")), (3, create(3, "three")))
        won = [at for at, outcome in enumerate(outcomes) if outcome.error is None]
        lost = [outcome.error for outcome in outcomes if outcome.error is not None]
        assert len(won) == 1 and len(lost) == 2
        assert all(isinstance(error, Rejected) and error.cql_code == ALREADY_EXISTS for error in lost)
        tables = [present(town.node(number)) for number in (1, 2, 3)]
        assert tables[0] is not None and tables[0] == tables[1] == tables[2]
        assert (
            tables[0].uuid.endswith(str(won[0] + 1)) and ("one", "two", "three")[won[0]] in tables[0].by_name
        )


@pytest.mark.parametrize("seed", SEEDS)
def test_an_alter_that_races_with_a_drop_comes_first_or_is_refused(seed: int) -> None:
    with founded(seed) as town:
        submitted(town, (1, create(1)))
        alter, drop = submitted(
            town, (2, AddColumns("ks", "t", (NewColumn("w", "int"),))), (3, DropTable("ks", "t"))
        )
        assert drop.error is None and present(town.node(1)) is None
        if alter.error is None:
            assert alter.value < drop.value
        else:
            assert isinstance(alter.error, Rejected) and "doesn't exist" in alter.error.message


def test_fifty_clients_that_change_one_table_all_get_a_definite_answer() -> None:
    with founded(4) as town:
        changes: list[tuple[int, SchemaChange]] = []
        for at in range(50):
            node = at % 3 + 1
            column = (NewColumn(f"c{at % 7}", "int"),)
            changes += [
                (node, create(at + 1)),
                (node, AddColumns("ks", "t", column)),
                (node, DropColumns("ks", "t", (f"c{at % 5}",), 1_000 + at)),
                *[(node, DropTable("ks", "t"))] * (at % 5 == 0),
            ]
        outcomes = submitted(town, *changes)
        unknown = [o.error for o in outcomes if o.error is not None and not isinstance(o.error, Rejected)]
        assert not unknown and len({o.value for o in outcomes if o.error is None}) == sum(
            o.error is None for o in outcomes
        )
        digests = [town.node(number).log.cluster.schema.digest for number in (1, 2, 3)]
        assert digests[0] == digests[1] == digests[2]


# Data in flight


def meant(table: Table) -> str:
    """Which table, and since which epoch its columns are what they are: said by every value."""
    return f"{table.uuid}/{table.epoch}"


def mutation(node: Node, table: Table, key: bytes, column: int, text: str, at_us: int) -> Mutation:
    cell = Cell(column, text.encode(), at_us)
    row = Row(clustering_bytes(1), Liveness(at_us), None, (cell,))
    return Mutation(table.id, token_of(key), key, node.data.new_mutation_id(), at_us, None, (), None, (row,))


async def cells(node: Node, table: Table, level: Consistency = Consistency.ALL) -> list[Cell]:
    """Cells of the table's present columns, as a SELECT shows them."""
    command = ReadCommand(table.id, TOKEN_MIN, TOKEN_MAX, None, ALL_ROWS, (), False, False, 1_000, 0, 1)
    result = await node.data.coordinator.read(command, level, TIMEOUT_MS)
    return [
        cell
        for partition in result.partitions
        for row in partition.rows
        for cell in row.cells
        if cell.column in table.by_id
    ]


class Writers:
    """Writers at nodes 2 and 3 that always use the table as they know it, or knew it a while ago; what they
    write names the table and the column they meant."""

    def __init__(self, town: Town, column: str) -> None:
        self.town = town
        self.column = column
        self.written = 0
        self.refused = 0
        self.stopped = False
        self.outcomes = [town.begin(number, self._run) for number in (2, 3)]

    async def _run(self, node: Node) -> None:
        number, known = 0, present(node)
        while not self.stopped:
            number += 1
            if number % 7 == 0 or known is None:
                known = present(node)
            column = known.by_name.get(self.column) if known is not None else None
            await asyncio.sleep(0.003)
            if known is None or column is None:
                known = present(node)
                continue
            said = meant(known)
            try:
                made = mutation(node, known, KEYS[number % len(KEYS)], column.id, said, 1_000 + number)
                await node.data.coordinator.write(made, Consistency.QUORUM, TIMEOUT_MS)
                self.written += 1
            except LockstepError:
                # As a client whose prepared statement is old, it comes again with what it knew.
                self.refused += 1

    def stop(self) -> None:
        self.stopped = True
        self.town.until(lambda: all(outcome.done for outcome in self.outcomes))
        assert all(outcome.error is None for outcome in self.outcomes)


def shown(town: Town, number: int) -> tuple[Table, list[Cell]]:
    table = present(town.node(number))
    assert table is not None
    found = town.finish(town.begin(number, lambda node: cells(node, table)))
    assert found.error is None, found.error
    return table, found.value


@pytest.mark.parametrize("seed", SEEDS)
def test_a_table_that_comes_back_never_shows_rows_of_its_predecessor(seed: int) -> None:
    with founded(seed) as town:
        submitted(town, (1, create(1)))
        writers, seen = Writers(town, "v"), 0
        for generation in range(2, 9):
            town.wait(0.05)
            submitted(town, (1, DropTable("ks", "t")))
            submitted(town, (generation % 3 + 1, create(generation)))
            town.wait(0.03)
            table, found = shown(town, 1)
            assert all(cell.value == meant(table).encode() for cell in found)
            seen += len(found)
        writers.stop()
        assert seen > 8
        assert writers.written > 20 and writers.refused > 0, "data was in flight"
        for number in (1, 2, 3):
            table, found = shown(town, number)
            assert all(cell.value == meant(table).encode() for cell in found)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_column_that_comes_back_never_shows_what_was_dropped(seed: int) -> None:
    """One replica misses writes, so reads repair; it holds cells of columns that were dropped meanwhile."""
    with founded(seed) as town:
        submitted(town, (1, create(1, "w")))
        writers, seen = Writers(town, "w"), 0
        for generation in range(8):
            cut = [pair for pair in ((1, 2), (3, 2)) if generation % 2]
            for one, other in cut:
                town.world.network.block(f"127.0.0.{one}", f"127.0.0.{other}")
            town.wait(0.04)
            drop = town.submit(1, ChangeSchema(DropColumns("ks", "t", ("w",), generation)))
            town.finish(drop)
            add = town.submit(3, ChangeSchema(AddColumns("ks", "t", (NewColumn("w", "text"),))))
            town.finish(add)
            for one, other in cut:
                town.world.network.unblock(f"127.0.0.{one}", f"127.0.0.{other}")
            town.agreed(1, 2, 3)
            table, found = shown(town, generation % 3 + 1)
            assert all(cell.value == meant(table).encode() for cell in found), found
            assert {cell.column for cell in found} <= {table.by_name["w"].id}
            town.wait(0.04)
            seen += len(shown(town, 1)[1])
        writers.stop()
        assert writers.written > 20 and seen > 8
        before = present(town.node(1))
        assert before is not None and len(before.dropped) == 8
        assert len({c.id for c in before.columns} | {c.id for c in before.dropped}) == 12


def test_a_write_for_a_dropped_column_leaves_the_row_readable() -> None:
    with founded(5) as town:
        submitted(town, (1, create(1, "w")))
        old = present(town.node(2))
        assert old is not None
        submitted(town, (1, DropColumns("ks", "t", ("w",), 5)))
        submitted(town, (1, AddColumns("ks", "t", (NewColumn("w", "blob"),))))

        async def write(node: Node) -> Any:
            # The client's timestamp is far ahead: the drop's own time would not cover it.
            late = mutation(node, old, KEYS[0], old.by_name["w"].id, "text, not blob", 10**15)
            return await node.data.coordinator.write(late, Consistency.ALL, TIMEOUT_MS)

        written = town.finish(town.begin(2, write))
        assert written.error is None
        for number in (1, 2, 3):
            table, found = shown(town, number)
            assert found == [] and table.by_name["w"].type == "blob"
