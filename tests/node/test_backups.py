"""Backups and restores in simulated clusters: what was acknowledged comes back, here or elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.repairs import Repair, RepairState
from lockstep.metadata.schema_change import ChangeSchema
from lockstep.node.node import Node
from lockstep.node.work.backup_choice import Restored
from lockstep.node.work.backup_service import BackupRestoring
from lockstep.replica.backup_messages import BackupOrder, BackupStatus, KeptPart
from lockstep.schema.changes import AddColumns, CreateTable, DropColumns, DropTable, EmptyTable, NewColumn
from lockstep.sim.plant import replaced
from lockstep.storage import backup_manifest
from lockstep.values.errors import PreconditionError, Rejected
from lockstep.values.ids import Consistency, NodeId, mutation_id
from lockstep.values.rows import ALL_ROWS, Cell, Liveness, Mutation, ReadCommand, ReadResult, Row
from lockstep.values.tokens import FULL_RING, token_of
from tests.node.support import Town, keyspace, table
from tests.node.test_repairs import done, part, table_id

NODES = (1, 2, 3)
NOW_S = 10_000_000_000


def founded(town: Town, *numbers: int) -> Town:
    town.found()
    for change in (keyspace("ks"), table("ks")):
        done(town, town.submit(1, change))
    town.agreed(*numbers)
    return town


@pytest.fixture
def town() -> Iterator[Town]:
    with Town() as made:
        yield founded(made, *NODES)


def mutation(cluster: ClusterMetadata, key: int, time_us: int) -> Mutation:
    name = key.to_bytes(4, "big")
    rows = (Row(b"\x00", Liveness(time_us), None, (Cell(2, b"%d" % time_us, time_us),)),)
    unique = mutation_id(1, 1, time_us * 1000 + key)
    return Mutation(table_id(cluster), token_of(name), name, unique, time_us, rows=rows)


async def written(node: Node, keys: range, time_us: int) -> None:
    for key in keys:
        await node.data.coordinator.write(mutation(node.log.cluster, key, time_us), Consistency.QUORUM, 5000)


def write(town: Town, keys: range, time_us: int = 1) -> None:
    done(town, town.begin(1, lambda node: written(node, keys, time_us)))


def keys_at(town: Town, number: int) -> set[int]:
    """What one node alone has stored."""

    found = done(town, town.begin(number, everything))
    return {int.from_bytes(partition.key, "big") for partition in found.partitions if partition.rows}


async def everything(node: Node) -> ReadResult:
    return await node.data.engine.read(
        ReadCommand(
            table_id(node.log.cluster), *FULL_RING_BOUNDS, None, ALL_ROWS, (), False, False, 0, 0, NOW_S
        )
    )


def columns_at(town: Town, number: int) -> set[int]:
    """Ids of the columns that cells have there."""
    found = done(town, town.begin(number, everything))
    return {cell.column for partition in found.partitions for row in partition.rows for cell in row.cells}


FULL_RING_BOUNDS = (FULL_RING.left, FULL_RING.right)


def ended(town: Town, begun: Repair) -> Repair:
    def now() -> Repair | None:
        return town.newest.repairs.find(begun.id)

    town.until(lambda: (found := now()) is not None and found.state is not RepairState.RUNNING)
    found = now()
    assert found is not None
    return found


def back_up(town: Town, name: str = "b", number: int = 1, **options: Any) -> Repair:
    """Run one to its end."""
    asked = town.begin(
        number, lambda node: node.work.backups.begin(name, (part(town.newest),), (), **options)
    )
    return ended(town, done(town, asked))


async def restoring(node: Node, name: str, *, empty: bool = False) -> Repair:
    found = await node.work.backups.found(name)
    names = {found.tables()[0].id: ("ks", "t")}
    return await node.work.backups.begin_restore(Restored(found, names, (("ks", "t"),) if empty else ()))


def restore(town: Town, name: str = "b", number: int = 2, *, empty: bool = False) -> Repair:
    return ended(town, done(town, town.begin(number, lambda node: restoring(node, name, empty=empty))))


def truncate(town: Town) -> None:
    done(town, town.submit(1, ChangeSchema(EmptyTable("ks", "t"))))
    town.agreed(*NODES)


def part_of(town: Town, number: int, name: str = "b") -> str:
    node = town.node(number)
    return backup_manifest.part_directory(name, node.context.identity.value.host_id)


def test_what_was_acknowledged_before_comes_back_to_every_replica(town: Town) -> None:
    write(town, range(40))
    assert back_up(town).state is RepairState.DONE
    write(town, range(40, 50))
    truncate(town)
    assert all(not keys_at(town, number) for number in NODES)
    assert restore(town).state is RepairState.DONE
    for number in NODES:
        assert keys_at(town, number) == set(range(40))


def test_a_restore_beside_newer_rows_keeps_the_newer(town: Town) -> None:
    write(town, range(10), 5)
    back_up(town)
    write(town, range(5, 15), 9)
    assert restore(town).state is RepairState.DONE
    assert keys_at(town, 3) == set(range(15))

    found = done(town, town.begin(3, everything))
    newest = {
        int.from_bytes(partition.key, "big")
        for partition in found.partitions
        if partition.rows[0].cells[0].timestamp_us == 9
    }
    assert newest == set(range(5, 15))


def test_what_a_column_held_before_it_was_dropped_does_not_come_back(town: Town) -> None:
    """The table that is made for a restore knows nothing of the drop."""
    write(town, range(10), 5)
    column = next(one for one in town.newest.schema.by_name["ks"].tables[0].columns if one.name == "v")
    for change in (
        DropColumns("ks", "t", ("v",), 6),
        AddColumns("ks", "t", (NewColumn("v", column.type),), brings_back=("v",)),
    ):
        done(town, town.submit(1, ChangeSchema(change)))
    town.agreed(*NODES)
    write(town, range(3), 9)
    back_up(town)
    done(town, town.submit(1, ChangeSchema(DropTable("ks", "t"))))
    done(town, town.submit(1, other_table("ks")))
    town.agreed(*NODES)
    assert restore(town).state is RepairState.DONE
    for number in NODES:
        found = done(town, town.begin(number, everything))
        rows = [row for partition in found.partitions for row in partition.rows]
        assert len(rows) == 10, "the rows are there"
        assert [cell.timestamp_us for row in rows for cell in row.cells] == [9, 9, 9]


def other_table(keyspace_name: str) -> ChangeSchema:
    """The same columns by name, under other ids, and one more."""
    made = table(keyspace_name).change
    assert isinstance(made, CreateTable)
    columns = (made.columns[0], NewColumn("extra", "text"), *made.columns[1:])
    uuid = f"00000000-0000-4000-8000-{len(keyspace_name):012d}"
    return ChangeSchema(msgspec.structs.replace(made, columns=columns, uuid=uuid))


def test_another_cluster_takes_the_parts_of_all_nodes_from_one_directory(town: Town) -> None:
    """Of another size, with other tokens and other ids of its table and columns."""
    write(town, range(60))
    assert back_up(town).state is RepairState.DONE
    files = {
        f"{part_of(town, number)}/{name}": town.node(number).runtime.disk.read(
            f"{part_of(town, number)}/{name}"
        )
        for number in NODES
        for name in town.node(number).runtime.disk.names(part_of(town, number))
    }
    with Town(seed=7, founders=5) as other:
        other.found()
        for change in (keyspace("a"), other_table("a"), keyspace("ks"), other_table("ks")):
            done(other, other.submit(1, change))
        other.agreed(1, 2, 3, 4, 5)

        kept = [
            KeptPart("b", path.split("/")[2], manifest=content)
            for path, content in files.items()
            if path.endswith(backup_manifest.MANIFEST)
        ]
        planned = done(other, other.begin(2, lambda node: node.work.backups.found("b", {NodeId(4): kept})))
        assert planned.host_ids == {4: tuple(part.host_id for part in kept)}, "as if it kept them"

        async def place(node: Node) -> None:
            for path, content in files.items():
                node.runtime.disk.append(path, content)

        done(other, other.begin(4, place))
        assert table_id(other.newest) != table_id(town.newest)
        assert restore(other).state is RepairState.DONE
        seen: dict[int, int] = {}
        for number in range(1, 6):
            for key in keys_at(other, number):
                seen[key] = seen.get(key, 0) + 1
        assert seen == dict.fromkeys(range(60), 3)
        stored = other.newest.schema.by_name["ks"].tables[0]
        assert columns_at(other, 1) <= {stored.by_name["v"].id} != {2}


def damaged(town: Town) -> str:
    """The path of a file of node 3's part that has a flipped bit from now on."""
    directory = part_of(town, 3)

    async def damage(node: Node) -> str:
        disk = node.runtime.disk
        name = next(name for name in disk.names(directory) if name not in ("manifest.json", "metadata"))
        content = bytearray(disk.read(f"{directory}/{name}"))
        content[len(content) // 2] ^= 1
        disk.remove(f"{directory}/{name}")
        disk.append(f"{directory}/{name}", bytes(content))
        return name

    return f"{directory}/{done(town, town.begin(3, damage))}"


def test_a_damaged_file_is_named_and_nothing_is_emptied_or_restored(town: Town) -> None:
    write(town, range(20))
    back_up(town)
    write(town, range(10, 30), 9)
    path, before = damaged(town), table_id(town.newest)
    failed = restore(town, empty=True)
    assert failed.state is RepairState.FAILED
    assert path in failed.reason and failed.reason.endswith("nothing was changed")
    assert table_id(town.newest) == before
    assert keys_at(town, 1) == set(range(30))


def test_a_table_is_emptied_when_all_files_were_found_whole(town: Town) -> None:
    write(town, range(20))
    back_up(town)
    write(town, range(10, 30), 9)
    before = table_id(town.newest)
    assert restore(town, empty=True).state is RepairState.DONE
    assert table_id(town.newest) != before
    for number in NODES:
        assert keys_at(town, number) == set(range(20))


@contextmanager
def held(name: str) -> Iterator[tuple[Town, list[bool]]]:
    """A cluster with a backup `b` of its rows, whose restores stand still at the end of a piece of work until
    the list says True."""
    work, goes_on = getattr(BackupRestoring, name), [False]

    async def holding(self: BackupRestoring, order: BackupOrder) -> BackupStatus:
        status: BackupStatus = await work(self, order)
        # The test stands outside this loop, so it sets no event.
        while not goes_on[0]:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        return status

    with replaced((BackupRestoring, name, holding)), Town() as town:
        write(founded(town, *NODES), range(20))
        assert back_up(town).state is RepairState.DONE
        yield town, goes_on


def test_a_restore_that_is_ended_while_it_checks_empties_nothing() -> None:
    with held("offer") as (town, goes_on):
        before = table_id(town.newest)
        begun = done(town, town.begin(1, lambda node: restoring(node, "b", empty=True)))
        done(town, town.begin(2, lambda node: node.work.backups.cancel(begun.id, "an operator ended it")))
        town.agreed(*NODES)
        goes_on[0] = True
        town.wait(5)
        assert ended(town, begun).state is RepairState.CANCELLED
        assert table_id(town.newest) == before and keys_at(town, 1) == set(range(20))


def test_a_table_that_a_restore_has_emptied_is_neither_backed_up_nor_repaired_before_it_is_full() -> None:
    with held("load") as (town, goes_on):
        before = table_id(town.newest)
        begun = done(town, town.begin(1, lambda node: restoring(node, "b", empty=True)))
        town.until(lambda: table_id(town.newest) != before)
        town.agreed(*NODES)
        for begin in (
            lambda node: node.work.backups.begin("c", (part(town.newest),), ()),
            lambda node: node.work.repairs.begin((part(town.newest),)),
        ):
            refused = town.finish(town.begin(2, begin)).error
            assert isinstance(refused, Rejected) and "has emptied tables of keyspace ks" in refused.message
        goes_on[0] = True
        assert ended(town, begun).state is RepairState.DONE
        assert back_up(town, "c").state is RepairState.DONE


def test_a_missing_part_is_named(town: Town) -> None:
    write(town, range(5))
    back_up(town)

    async def lose(node: Node) -> None:
        await node.work.backups._desk._taking.kept("b", remove=True)

    done(town, town.begin(2, lose))
    asked = town.begin(1, lambda node: node.work.backups.found("b"))
    town.finish(asked)
    assert isinstance(asked.error, PreconditionError)
    assert town.node(2).context.identity.value.host_id in asked.error.message


def test_a_node_that_is_away_is_left_out_only_when_that_is_said_and_a_quorum_is_there(town: Town) -> None:
    write(town, range(20))
    town.process(3).crash()
    town.until(lambda: not town.node(1).membership.liveness.alive(3))
    refused = town.begin(1, lambda node: node.work.backups.begin("b", (part(town.newest),), ()))
    assert isinstance(town.finish(refused).error, PreconditionError)
    assert back_up(town, allow_absent=True).state is RepairState.DONE
    (kept, *_), _ = done(town, town.begin(1, lambda node: node.work.backups.kept("b", with_manifests=True)))
    assert kept == NodeId(1)
    town.process(2).crash()
    town.until(lambda: not town.node(1).membership.liveness.alive(2))
    lossy = town.begin(
        1, lambda node: node.work.backups.begin("c", (part(town.newest),), (), allow_absent=True)
    )
    error = town.finish(lossy).error
    assert isinstance(error, PreconditionError)
    assert "acknowledged writes would be missing" in error.message


def test_a_backup_whose_node_dies_is_none(town: Town) -> None:
    """Nor is what the others wrote; a later one of the same name may be made once that is removed."""
    write(town, range(30))
    struck: list[bool] = []

    def died() -> bool:
        if not struck and town.newest.repairs.running:
            struck.append(True)
            town.process(3).crash()
        return False

    asked = town.begin(1, lambda node: node.work.backups.begin("b", (part(town.newest),), ()))
    town.until(lambda: died() or bool(struck))
    failed = ended(town, done(town, asked))
    assert failed.state is RepairState.FAILED
    refused = town.begin(1, lambda node: node.work.backups.found("b"))
    assert isinstance(town.finish(refused).error, PreconditionError)


def test_a_driver_that_starts_anew_ends_what_it_left(town: Town) -> None:
    write(town, range(10))
    begun = done(town, town.begin(2, lambda node: node.work.backups.begin("b", (part(town.newest),), ())))
    town.process(2).crash()
    town.start(2)
    town.until(lambda: town.ready(2))
    assert ended(town, begun).state in (RepairState.FAILED, RepairState.DONE)


def test_a_backup_that_is_ended_early_leaves_nothing(town: Town) -> None:
    write(town, range(30))
    begun = done(town, town.begin(1, lambda node: node.work.backups.begin("b", (part(town.newest),), ())))
    done(town, town.begin(2, lambda node: node.work.backups.cancel(begun.id, "an operator ended it")))
    assert ended(town, begun).state is RepairState.CANCELLED
    town.wait(2)
    kept, silent = done(town, town.begin(3, lambda node: node.work.backups.kept()))
    assert not silent and not any(kept.values())
    assert back_up(town).state is RepairState.DONE
