"""Repairs in a simulated cluster: replicas that missed writes get them from each other, with no reads."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from lockstep.handoff.hint_store import DroppedHints
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.repairs import RepairPart, RepairState
from lockstep.node.node import Node
from lockstep.node.work import repairs
from lockstep.node.work.repairs import parts_that_differ
from lockstep.sim.plant import replaced
from lockstep.values.errors import PreconditionError, Rejected
from lockstep.values.ids import MUTATION_ID_BYTES, NodeId
from lockstep.values.rows import (
    Cell,
    Deletion,
    Liveness,
    Mutation,
    Partition,
    Position,
    RangeDeletion,
    ReadResult,
    Row,
)
from lockstep.values.tokens import FULL_RING, Range, token_of
from tests.node.support import Outcome, Town, keyspace, table

NODES = (1, 2, 3)
#: Behind the end of the grace time in every run: nothing may be purged.
NOW_S = 10_000_000_000


def done(town: Town, outcome: Outcome) -> Any:
    """What came of it, once it is done and no error."""
    town.finish(outcome)
    assert outcome.error is None, outcome.error
    return outcome.value


@pytest.fixture
def town() -> Iterator[Town]:
    with Town() as made:
        made.found()
        for change in (keyspace("ks"), table("ks")):
            done(made, made.submit(1, change))
        made.agreed(*NODES)
        yield made


def table_id(cluster: ClusterMetadata) -> int:
    return cluster.schema.by_name["ks"].tables[0].id


def part(cluster: ClusterMetadata, *ranges: Range) -> RepairPart:
    keyspace_ = cluster.schema.by_name["ks"]
    tables = tuple(one.id for one in keyspace_.tables)
    return RepairPart("ks", keyspace_.group, tables, ranges or (FULL_RING,))


def write(town: Town, number: int, key: int, time_us: int, **more: Any) -> None:
    """One mutation at one replica alone."""
    node = town.node(number)
    name = key.to_bytes(4, "big")
    rows = more.pop("rows", None)
    if rows is None and not more:
        rows = (Row(b"\x00", Liveness(time_us), None, (Cell(2, b"%d" % time_us, time_us),)),)
    unique = (time_us * 1000 + key * 10 + number).to_bytes(MUTATION_ID_BYTES, "big")
    mutation = Mutation(table_id(town.newest), token_of(name), name, unique, time_us, rows=rows or (), **more)
    done(town, town.begin(number, lambda _: applied(node, mutation)))


async def applied(node: Node, mutation: Mutation) -> None:
    await node.data.engine.synced(node.data.engine.apply(mutation))


def digests(town: Town, *numbers: int) -> list[bytes]:
    def digest(number: int) -> bytes:
        asked = town.begin(number, lambda node: node.data.engine.digest(table_id(town.newest), FULL_RING))
        return bytes(done(town, asked))

    return [digest(number) for number in numbers]


def repair(town: Town, number: int = 1, *ranges: Range, **options: Any) -> None:
    """Run one to its end, which is a good one."""
    asked = town.begin(number, lambda node: node.work.repairs.begin((part(town.newest, *ranges),), **options))
    begun = done(town, asked)
    town.until(lambda: not town.newest.repairs.running)
    ended = town.newest.repairs.find(begun.id)
    assert ended is not None and ended.state is RepairState.DONE, ended


def scatter(town: Town, draw: random.Random, count: int) -> None:
    """Writes and deletions that each reach some of the replicas."""
    for at in range(count):
        time_us = 1_000_000 * (at + 1)
        key = draw.randrange(count // 2)
        kind = draw.choice(("row", "row", "row", "partition", "range", "cell"))
        more: dict[str, Any] = {}
        if kind == "partition":
            more["deletion"] = Deletion(time_us, NOW_S + at)
        elif kind == "range":
            more["range_deletions"] = (RangeDeletion(b"\x00", b"\x80", Deletion(time_us, NOW_S + at)),)
        elif kind == "cell":
            more["rows"] = (Row(b"\x00", cells=(Cell(2, None, time_us, 0, NOW_S + at),)),)
        for number in draw.sample(NODES, draw.randrange(1, 4)):
            write(town, number, key, time_us, **more)


def test_replicas_that_missed_writes_are_equal_after_a_repair(town: Town) -> None:
    scatter(town, random.Random(7), 40)
    assert len(set(digests(town, *NODES))) > 1
    repair(town)
    assert len(set(digests(town, *NODES))) == 1
    progress = town.node(1).work.repairs.progress[1]
    assert progress.changes_sent and progress.leaves_different
    sent = progress.changes_sent
    repair(town, 2)
    assert town.node(2).work.repairs.progress[2].changes_sent == 0, "nothing is sent twice"
    assert sent
    recorded = town.newest.repairs.by_table[table_id(town.newest)]
    assert [one.range for one in recorded] == [FULL_RING]
    assert recorded[0].before_s > 0


def test_a_part_of_the_ring_is_repaired_alone(town: Town) -> None:
    scatter(town, random.Random(8), 30)
    half = Range(FULL_RING.left, 0)
    repair(town, 1, half)

    def halves(number: int, range_: Range) -> bytes:
        asked = town.begin(number, lambda node: node.data.engine.digest(table_id(town.newest), range_))
        return bytes(done(town, asked))

    assert len({halves(number, half) for number in NODES}) == 1
    assert len({halves(number, Range(0, FULL_RING.right)) for number in NODES}) > 1


def test_some_hosts_alone_record_nothing(town: Town) -> None:
    write(town, 1, 5, 1_000_000)
    repair(town, 1, nodes=(NodeId(1), NodeId(2)))
    one, two, three = digests(town, *NODES)
    assert one == two != three
    assert town.newest.repairs.tables == ()


def test_a_dead_participant_is_a_refusal_and_a_death_on_the_way_a_failure(town: Town) -> None:
    for key in range(20):
        write(town, 1, key, 1_000_000)
    begun = town.begin(1, lambda node: node.work.repairs.begin((part(town.newest),)))
    repair_id = done(town, begun).id
    town.process(3).crash()
    town.until(lambda: not town.newest.repairs.running)
    ended = town.newest.repairs.find(repair_id)
    assert ended is not None and ended.state is RepairState.FAILED and "ranges: " in ended.reason
    assert town.newest.repairs.tables == ()
    town.wait(10)
    refused = town.begin(1, lambda node: node.work.repairs.begin((part(town.newest),)))
    town.until(lambda: refused.done)
    assert isinstance(refused.error, PreconditionError)
    town.start(3)
    town.until(lambda: town.ready(3))
    town.wait(2)
    repair(town)
    assert len(set(digests(town, *NODES))) == 1


def test_the_driver_ends_at_its_next_start_what_it_began(town: Town) -> None:
    write(town, 1, 1, 1_000_000)
    begun = town.begin(2, lambda node: node.work.repairs.begin((part(town.newest),)))
    town.until(lambda: bool(town.newest.repairs.running))
    town.process(2).crash()
    town.wait(1)
    assert town.newest.repairs.running
    assert not begun.error
    held = town.begin(1, lambda node: node.work.repairs.begin((part(town.newest),)))
    town.until(lambda: held.done)
    assert isinstance(held.error, Rejected | PreconditionError)
    town.start(2)
    town.until(lambda: town.ready(2) and not town.newest.repairs.running)
    ended = town.newest.repairs.ended[-1]
    assert ended.state is RepairState.FAILED and "started anew" in ended.reason


def test_a_cancelled_repair_has_no_more_effect(town: Town) -> None:
    for key in range(30):
        write(town, 1, key, 1_000_000)
    begun = town.begin(1, lambda node: node.work.repairs.begin((part(town.newest),)))
    town.until(lambda: bool(town.newest.repairs.running))
    done(town, town.begin(2, lambda node: node.work.repairs.cancel(1, "enough")))
    town.until(lambda: not town.newest.repairs.running)
    town.wait(2)
    assert begun.error is None
    ended = town.newest.repairs.ended[-1]
    assert ended.state is RepairState.CANCELLED and ended.reason == "enough"
    before = digests(town, *NODES)
    town.wait(5)
    assert digests(town, *NODES) == before


def test_an_incremental_repair_does_what_a_full_one_would(town: Town) -> None:
    """Whatever was written, and wherever it was missed, since the last repair of all."""
    scatter(town, random.Random(9), 20)
    repair(town)
    repair(town, 2)
    repair(town, 1, incremental=True)
    assert town.node(1).work.repairs.progress[3].leaves == 0, "nothing changed, nothing is compared"
    for seed in (10, 11):
        scatter(town, random.Random(seed), 12)
        repair(town, 1 + seed % 3, incremental=True)
        assert len(set(digests(town, *NODES))) == 1
    town.process(2).crash()
    town.start(2)
    town.until(lambda: town.ready(2))
    town.wait(1)
    write(town, 3, 5, 900_000_000)
    wiped = town.begin(
        2, lambda node: node.data.engine.wipe((table_id(town.newest),), Range(FULL_RING.left, 0))
    )
    done(town, wiped)
    repair(town, 1, incremental=True)
    assert len(set(digests(town, *NODES))) == 1, "what was lost counts as changed"


def test_what_was_marked_for_want_of_hints_is_forgotten_once_all_replicas_are_repaired(town: Town) -> None:
    table_, now_us = table_id(town.newest), town.node(1).runtime.clock.wall_us()
    old = DroppedHints(table_, NodeId(2), -10, 10, "window", now_us, now_us, 1)
    late = DroppedHints(table_, NodeId(3), -10, 10, "window", now_us, now_us + 3_600_000_000, 1)

    async def mark(node: Node) -> None:
        await node.data.engine.synced(node.data.hints.store.mark([old, late]))

    done(town, town.begin(1, mark))
    town.wait(2)
    repair(town, 2, nodes=(NodeId(1), NodeId(2)))
    assert len(list(town.node(1).data.hints.store.marks())) == 2, "not every replica took part"
    repair(town, 2)
    town.agreed(*NODES)
    assert list(town.node(1).data.hints.store.marks()) == [late]


class _Watched(tuple[Partition, ...]):
    """Partitions of an answer, and how many of them were looked at."""

    seen = 0

    def __iter__(self) -> Iterator[Partition]:
        for partition in super().__iter__():
            _Watched.seen += 1
            yield partition


def test_to_compare_answers_costs_what_they_hold_and_not_its_square() -> None:
    count = 2000

    def answer(time_us: int) -> ReadResult:
        made = (
            Partition(
                at,
                b"k",
                rows=(
                    Row(
                        b"",
                        Liveness(time_us + at % 7),
                    ),
                ),
            )
            for at in range(count)
        )
        return ReadResult(_Watched(made))

    ours, theirs = answer(1), answer(1)
    other = ReadResult(_Watched(part for part in theirs.partitions if part.token % 500))
    merged = tuple(ours.partitions)
    _Watched.seen = 0
    assert not parts_that_differ(merged, [ours, theirs], None, 0)
    found = parts_that_differ(merged, [ours, other, theirs], Position(3, b"k", b""), 0)
    assert [part.token for part in found] == [0, 3, 500, 1000, 1500]
    assert _Watched.seen <= 5 * count


def test_differing_rows_of_many_pages_arrive(town: Town) -> None:
    for key in range(12):
        for number in random.Random(key).sample(NODES, 2):
            write(town, number, key, 1000 + key)
    with replaced((repairs, "PAGE_ROWS_MAX", 2), (repairs, "LEAVES_TOGETHER_MAX", 1 << 20)):
        repair(town)
    assert len(set(digests(town, *NODES))) == 1
