"""The judge of partitions that are written whole: what it passes, what it counts, and that it sees torn reads
of untracked tables, of which tracked ones show none."""

from __future__ import annotations

import random

import pytest

from lockstep.metadata.schema_change import ChangeSchema
from lockstep.node.node import Node
from lockstep.schema.changes import CreateKeyspace, CreateTable
from lockstep.sim.checkers.tracked import judge_whole
from lockstep.sim.checkers.whole import EXAMPLES_MAX, WholeReads
from lockstep.sim.door import mutation_for
from lockstep.sim.load.history import Change, Event, Look, Outcome
from lockstep.sim.runner import planted_bugs
from lockstep.values.ids import Consistency
from tests.node.support import Town
from tests.node.test_requests_while_moving import table_of
from tests.node.test_tracked import COLUMNS, REPLICATION, TIMEOUT_MS, isolated, paused, rows_read

QUORUM, ONE = Consistency.QUORUM, Consistency.ONE
ROWS = 3
NODES = (1, 2, 3)
#: Of whole partitions, in one run.
READS = 120


def wrote(at_us: int, start: int, end: int, level: Consistency = QUORUM, row: int = -1) -> Event:
    rows = range(ROWS) if row < 0 else (row,)
    change = Change("t", b"k", at_us, level, 1000, tuple((at, b"%d/w" % at_us) for at in rows))
    return Event(client="w", request=change, start_ns=start, end_ns=end, outcome=Outcome.OK)


def read(
    seen: dict[int, int], start: int, end: int, level: Consistency = QUORUM, row: int | None = None
) -> Event:
    look = Look("t", b"k", row, level, 1000, 100)
    rows = tuple((b"k", at, b"%d/w" % value) for at, value in seen.items())
    return Event(client="r", request=look, start_ns=start, end_ns=end, outcome=Outcome.OK, rows=rows)


def all_rows(version: int) -> dict[int, int]:
    return dict.fromkeys(range(ROWS), version)


@pytest.mark.parametrize(
    ("events", "torn", "back"),
    [
        ([wrote(5, 0, 1), read(all_rows(5), 2, 3)], 0, 0),
        # Nothing yet of a write that goes on, and what a read beside it shows.
        ([wrote(5, 0, 9), read({}, 2, 3), read(all_rows(5), 2, 4), read({}, 3, 5)], 0, 0),
        # Whoever begins as another one ends may have been first.
        ([wrote(5, 0, 2), read({}, 2, 3)], 0, 0),
        ([wrote(5, 0, 1), read({}, 2, 3)], 0, 1),
        ([wrote(5, 0, 1, ONE), read({}, 2, 3)], 0, 0),
        ([wrote(5, 0, 9), read(all_rows(5), 1, 2), read(all_rows(4), 3, 4)], 0, 1),
        ([wrote(5, 0, 9), read({1: 5}, 1, 2, row=1), read(all_rows(4), 3, 4)], 0, 1),
        ([wrote(5, 0, 9), read({0: 5, 1: 5, 2: 4}, 1, 2)], 1, 0),
        ([wrote(5, 0, 9), read({0: 5}, 1, 2)], 1, 0),
        ([wrote(5, 0, 9), read({0: 5}, 1, 2, ONE)], 0, 0),
    ],
)
def test_what_is_torn_and_what_goes_back_is_counted(events: list[Event], torn: int, back: int) -> None:
    found = judge_whole(events, ROWS)
    assert (found.torn, found.back) == (torn, back)
    assert bool(found.examples) == bool(torn or back)


def test_few_examples_are_kept_of_many_findings() -> None:
    found = WholeReads(ROWS)
    for _ in range(100):
        found.saw("k", found.begun("k"), {0: 1})
    assert found.torn == 100
    assert len(found.examples) == EXAMPLES_MAX


class Harness:
    """A table of three replicas, of which any two answer a read: writes that one of them alone has, reads of
    whole partitions and of single rows by any pair, as drawn."""

    def __init__(self, seed: int, replication_type: str) -> None:
        self.draw = random.Random(seed)
        self.judge = WholeReads(ROWS)
        self._version = 0
        self.town = Town(seed)
        self.is_tracked = replication_type == "tracked"
        self.town.found()
        made = [
            CreateKeyspace("ks", REPLICATION, replication_type=replication_type),
            CreateTable("ks", "t", "00000000-0000-4000-8000-000000000001", COLUMNS),
        ]
        for change in made:
            assert self.town.finish(self.town.submit(1, ChangeSchema(change))).error is None
        self.town.agreed(*NODES)

    def run(self, reads: int) -> WholeReads:
        with self.town:
            paused(self.town, *NODES)
            while self.judge.whole < reads:
                key = b"p%d" % self.draw.randrange(3)
                if self.draw.random() < 0.2:
                    self._write(key)
                else:
                    self._read(key)
        return self.judge

    def _write(self, key: bytes) -> None:
        """As one whose coordinator ended before others heard of it."""
        self._version += 1
        puts = tuple((row, b"%d/%d" % (self._version, row)) for row in range(ROWS))
        change = Change("t", key, self._version, ONE, TIMEOUT_MS, puts)

        async def work(node: Node) -> None:
            data, table = node.data, table_of(node)
            made = mutation_for(change, table, data.new_mutation_id(), 1)
            if self.is_tracked:
                data.replica.keeping.give(data.coordinator.plans.plan_of(made, ONE), made)
            else:
                data.engine.apply(made)

        assert self.town.finish(self.town.begin(self.draw.choice(NODES), work)).error is None

    def _read(self, key: bytes) -> None:
        asked, *others = self.draw.sample(NODES, 3)
        row = self.draw.randrange(ROWS) if self.draw.random() < 0.5 else None
        floor = self.judge.begun(key)
        isolated(self.town, others[0], [asked, others[1]])
        values = rows_read(self.town, asked, row, key=key)
        isolated(self.town, others[0], [asked, others[1]], heal=True)
        seen = {int(value.split(b"/")[1]): int(value.split(b"/")[0]) for value in values}
        self.judge.saw(key, floor, seen, row)


@pytest.mark.parametrize("seed", [1, 2])
def test_one_harness_sees_torn_reads_of_untracked_tables_and_none_of_tracked_ones(seed: int) -> None:
    untracked, tracked = (
        Harness(seed, kind).run(READS if kind == "tracked" else READS // 2)
        for kind in ("untracked", "tracked")
    )
    assert untracked.torn and untracked.back
    assert (tracked.torn, tracked.back, tracked.examples) == (0, 0, [])


def test_a_mutation_that_is_brought_in_part_is_seen() -> None:
    with planted_bugs()["tracked_first_row"].plant():
        assert Harness(1, "tracked").run(READS).torn
