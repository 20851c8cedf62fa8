"""Bulk loads on nodes of a simulated world: what is only asked, and what a power cut leaves of an index."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from lockstep.metadata.schema_change import ChangeSchema
from lockstep.node.node import Node
from lockstep.replica.load_requests import BeginRequest, CommitRequest, PutRequest
from lockstep.schema.changes import AlterOptions, CreateTable, NewColumn
from lockstep.schema.model import ColumnKind
from lockstep.schema.type_changes import CreateIndex, IndexedPart
from lockstep.sim.checkers.loads import Loading
from lockstep.sim.load.load_workload import files_of
from lockstep.sim.plant import replaced
from lockstep.storage.engine import StorageEngine
from lockstep.storage.index.index_entries import entry_bounds
from lockstep.storage.index.indexes import Indexes
from lockstep.streaming.load_files import LoadFiles
from lockstep.values.errors import Rejected, Unavailable
from lockstep.values.ids import Consistency

from .support import Town, keyspace
from .test_tracked_statements import doors, told

KEYS, ROWS = tuple(b"l%d" % number for number in range(4)), 3
COLUMNS = (
    NewColumn("pk", "blob", ColumnKind.PARTITION_KEY, 0),
    NewColumn("ck", "int", ColumnKind.CLUSTERING, 0),
    NewColumn("v", "blob"),
)


def founded(town: Town) -> None:
    town.found()
    for change in (
        keyspace("k"),
        ChangeSchema(CreateTable("k", "t", "00000000-0000-4000-8000-000000000002", COLUMNS)),
        ChangeSchema(CreateIndex("k", "t", "by_v", (IndexedPart("v"),))),
    ):
        assert town.finish(town.submit(1, change)).error is None
    town.agreed(1, 2, 3)


def test_whether_a_load_could_begin_is_asked_without_beginning_one() -> None:
    with Town() as town:
        founded(town)
        asked = BeginRequest("a", "k", "t", 60_000, dry_run=True)
        epoch = town.newest.epoch
        told = town.finish(town.begin(2, lambda node: node.services.work.bulk_loads.begin(asked)))
        assert told.value.state == "" and told.value.timestamp_us > 0
        assert [index.name for index in told.value.table.indexes] == ["by_v"]
        nowhere = BeginRequest("a", "k", "absent", 60_000, dry_run=True)
        told = town.finish(town.begin(2, lambda node: node.services.work.bulk_loads.begin(nowhere)))
        assert isinstance(told.error, Rejected)
        assert town.newest.epoch == epoch and not town.newest.loads.by_job


def test_a_load_that_a_clock_ahead_began_ends_when_nobody_renews_it() -> None:
    with Town() as town:
        founded(town)
        town.process(2).jump_wall(3600)
        asked = BeginRequest("a", "k", "t", 4_000)
        begun = town.finish(town.begin(2, lambda node: node.services.work.bulk_loads.begin(asked)))
        assert begun.error is None
        town.process(2).jump_wall(-3600)
        town.wait(1)
        assert town.newest.loads.running, "its lease lasts"
        town.until(lambda: not town.newest.loads.running, 30)
        assert town.newest.loads.by_job["a"].reason == "nobody renewed it"


async def load(node: Node) -> Any:
    loads = node.services.work.bulk_loads
    answer = await loads.begin(BeginRequest("a", "k", "t", 60_000))
    files, holders = [], set()
    for file, content in files_of(Loading(7, "a", KEYS, ROWS), answer, 0):
        holders.update((await loads.put(PutRequest("a", file, 0, content))).holders)
        files.append(file)
    wanted = CommitRequest("a", tuple(files), tuple(holders), int(Consistency.QUORUM), len(KEYS) * ROWS)
    return await loads.commit(wanted)


def test_a_load_into_a_tracked_table_needs_all_replicas() -> None:
    with Town() as town:
        founded(town)
        tracked = ChangeSchema(AlterOptions("k", "t", (("replication_type", "tracked"),)))
        assert town.finish(town.submit(1, tracked)).error is None
        town.agreed(1, 2, 3)
        town.process(3).crash()
        refused = town.finish(town.begin(1, load)).error
        assert isinstance(refused, Unavailable) and "2 of 3 replicas" in refused.message
        assert "needs all replicas" in refused.hint
        assert town.newest.loads.running
        town.start(3)
        town.until(lambda: town.ready(1, 2, 3))
        town.agreed(1, 2, 3)
        done = town.finish(town.begin(1, load))
        assert done.error is None and done.value.done and not done.value.lacking


def test_scenario_27_the_coordinator_of_a_load_dies_once_it_has_committed() -> None:
    """The others take it in by the log; a read has all rows of its partition or none, and in the end all."""
    with Town() as town:
        founded(town)
        tracked = ChangeSchema(AlterOptions("k", "t", (("replication_type", "tracked"),)))
        assert town.finish(town.submit(1, tracked)).error is None
        town.agreed(1, 2, 3)
        doors(town, 2, 3)
        town.begin(1, load)
        town.until(lambda: "a" in town.newest.loads.by_job and not town.newest.loads.running)
        town.process(1).crash()
        seen = []
        for turn in range(40):
            for key in KEYS:
                text = f"SELECT ck FROM k.t WHERE pk = 0x{key.hex()}"
                seen.append(len(told(town, 2 + turn % 2, text)))
            town.wait(0.05)
        assert set(seen) <= {0, ROWS + 1}
        assert seen[-len(KEYS) :] == [ROWS + 1] * len(KEYS)


def entries_on(town: Town, number: int) -> int:
    store = town.node(number).services.data.store
    table = town.newest.schema.table("k", "t")
    assert table is not None
    return len(list(store.scan(*entry_bounds(table.id))))


@pytest.mark.parametrize("is_planted", [False, True])
def test_entries_are_made_though_the_note_that_they_lack_was_lost(is_planted: bool) -> None:
    """A store may have the rows durably when power fails, and not what was written in the same step.
    Planted: a start notes nothing of rows that are there already."""
    wanted = len(KEYS) * (ROWS + 1)
    with Town() as town:
        founded(town)
        lost = (Indexes, "lack", lambda self, table_id, tokens: [])
        with replaced(lost, (LoadFiles, "remove", lambda self, key: 0)):
            done = town.finish(town.begin(1, load))
            town.wait(1.0)
        assert done.error is None and done.value.done
        town.process(2).crash("kill")
        # A store of another kind moves what it takes in.
        disk = town.process(2).disk
        for name in [name for name in disk.names("loads") if name.endswith(".run")]:
            disk.remove(f"loads/{name}")
        plant = replaced((StorageEngine, "came_in", lambda self, table_id, tokens, *, is_indexed: 0))
        with plant if is_planted else contextlib.nullcontext():
            town.start(2)
            town.until(lambda: town.ready(1, 2, 3))
            town.agreed(1, 2, 3)
            town.wait(5.0)
        assert entries_on(town, 2) == (0 if is_planted else wanted)
        # Nobody took the others' away, and they never had any.
        assert [entries_on(town, number) for number in (1, 3)] == [0, 0]
