"""Tracked tables under what is rare: numbered scenarios of mutation tracking that need no other topology.

The numbers are those of the scenarios of the proposal's study; the others are beside the mechanism they are
of.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from lockstep.metadata.schema_change import ChangeSchema
from lockstep.node.node import Node
from lockstep.node.work import condition_watches
from lockstep.replica.messages import WriteRequest
from lockstep.schema.changes import CreateKeyspace, CreateTable, EmptyTable
from lockstep.server.views.tracking_views import journal_rows
from lockstep.sim.door import clustering_number, command_for, mutation_for
from lockstep.sim.load.history import Change, Look
from lockstep.sim.runtime.probes import SYNC_IN_FLIGHT, CrashRule
from lockstep.values.codec import encode
from lockstep.values.errors import LockstepError, StaleEpoch
from lockstep.values.ids import Consistency
from lockstep.values.tokens import token_of
from tests.node.support import Outcome, Town
from tests.node.test_hints import away, back
from tests.node.test_requests_while_moving import cut, table_of
from tests.node.test_tracked import (
    ALL,
    COLUMNS,
    KEY,
    QUORUM,
    ROWS,
    TIMEOUT_MS,
    begin_write,
    held,
    isolated,
    lone_write,
    own_id,
    paused,
    rows_of,
    rows_read,
    settled,
    tracked,
    unreconciled,
    write,
)

LOCAL_QUORUM = Consistency.LOCAL_QUORUM
#: One row as it is seen: partition, clustering, value.
Seen = tuple[bytes, int, bytes]


def lone(town: Town, holder: int, change: Callable[[int], Change]) -> None:
    """Have one node alone hold a write, of which it told nobody; `change` gets the time."""

    async def work(node: Node) -> None:
        data, now_us = node.data, node.runtime.clock.wall_us()
        made = mutation_for(change(now_us), table_of(node), data.new_mutation_id(), now_us // 1_000_000)
        data.replica.keeping.give(data.coordinator.plans.plan_of(made, QUORUM), made)

    assert town.finish(town.begin(holder, work)).error is None


def without(first: int, end: int, key: bytes = KEY) -> Callable[[int], Change]:
    """These rows of a partition are deleted."""
    return lambda at: Change("t", key, at, QUORUM, TIMEOUT_MS, delete_rows=(first, end))


def two_rows(key: bytes) -> Callable[[int], Change]:
    return lambda at: Change("t", key, at, QUORUM, TIMEOUT_MS, ((0, b"u"), (1, b"u")))


def begin_look(town: Town, number: int, key: bytes | None, limit: int, *, pages: int = 1) -> Outcome:
    """So many pages of at most `limit` rows, of a partition or (no key) of the table."""

    async def work(node: Node) -> list[Seen]:
        table, after = table_of(node), None
        value = table.by_name["v"].id
        found: list[Seen] = []
        for _ in range(pages):
            look = Look("t", key, None, QUORUM, TIMEOUT_MS, page_rows=limit)
            now_s = node.runtime.clock.wall_us() // 1_000_000
            command = command_for(look, table, now_s, after)
            result = await node.data.coordinator.read(command, QUORUM, TIMEOUT_MS)
            for part in result.partitions:
                for row in part.rows:
                    found.extend(
                        (part.key, clustering_number(row.clustering), cell.value)
                        for cell in row.cells
                        if cell.column == value and cell.value is not None
                    )
            if not result.more:
                break
            after = result.end
        return found

    return town.begin(number, work)


def looked(town: Town, outcome: Outcome) -> list[Seen]:
    town.finish(outcome)
    assert outcome.error is None, outcome.error
    seen: list[Seen] = outcome.value
    return seen


def test_scenario_3_a_limit_is_filled_though_another_replica_alone_knows_what_is_deleted() -> None:
    with tracked(51) as town:
        rows = range(16)
        assert town.finish(begin_write(town, 1, ALL, rows)).error is None
        settled(town)
        paused(town, 1, 2, 3)
        lone(town, 2, without(0, 6))
        cut(town, 1, 3)
        assert [row for _, row, _ in looked(town, begin_look(town, 1, KEY, 10))] == [*range(6, 16)]
        # A write that lands while the read asks again is in it whole, or not at all.
        both = set()
        for turn in range(24):
            assert town.finish(begin_write(town, 2, ALL, rows, b"a")).error is None
            lone(town, 2, without(0, 6))
            town.wait(0.001)  # What is written next is newer.
            reading = begin_look(town, 1, KEY, 10)
            town.wait(turn * 0.0003)
            writing = begin_write(town, 2, QUORUM, rows, b"b")
            seen = looked(town, reading)
            assert town.finish(writing).error is None
            values = {value for _, _, value in seen}
            assert values in ({b"a"}, {b"b"}), seen
            first = 0 if values == {b"b"} else 6
            assert [row for _, row, _ in seen] == [*range(first, first + 10)]
            both |= values
        assert both == {b"a", b"b"}, "the write came before some answers, and after others"


def test_scenario_4_pages_over_partitions_have_those_that_one_replica_alone_holds() -> None:
    with tracked(52) as town:
        known = [b"k%d" % number for number in range(0, 24, 2)]
        unseen = [b"k%d" % number for number in range(1, 24, 2)]
        for key in known:
            assert town.finish(begin_write(town, 1, ALL, (0, 1), key=key)).error is None
        settled(town)
        paused(town, 1, 2, 3)
        for number, key in enumerate(unseen):
            lone(town, 2, two_rows(key))
            if number % 3 == 0:
                lone(town, 2, without(0, 2, known[number]))
        cut(town, 1, 3)
        gone = set(known[0 : len(unseen) : 3])
        wanted = sorted({*known, *unseen} - gone, key=lambda key: (token_of(key), key))
        for limit in (1, 3, 5, 100):
            seen = looked(town, begin_look(town, 1, None, limit, pages=100))
            assert [(key, row) for key, row, _ in seen] == [(key, row) for key in wanted for row in (0, 1)]


def test_scenario_6_what_is_not_durable_yet_at_the_replica_with_the_data_is_seen() -> None:
    with tracked(53) as town:
        assert write(town, 1, ALL, b"a").error is None
        settled(town)
        paused(town, 1, 2, 3)
        disk = town.process(1).disk
        usual = disk.settings
        disk.settings = type(usual)(sync_low_s=0.4, sync_high_s=0.4)
        assert write(town, 2, value=b"b").error is None
        cut(town, 1, 3)
        began_s = town.world.now_s()
        assert rows_read(town, 1) == [b"b"] * 10
        # Not before it is durable at both: a power cut right afterwards leaves it where a quorum finds it.
        assert town.world.now_s() - began_s > 0.1
        disk.settings = usual
        town.process(1).crash("power")
        cut(town, 1, 3, heal=True)
        town.node(2).data.reconciler.is_paused = town.node(3).data.reconciler.is_paused = False
        back(town, 1)
        assert rows_of(town, 1) == 10 and rows_read(town, 3) == [b"b"] * 10


def test_scenario_7_what_becomes_reconciled_while_a_read_is_under_way_is_not_lost_to_reads() -> None:
    """A read has its answers from before a write, and goes on when all replicas have let go of that."""
    with tracked(54) as town:
        assert write(town, 1, ALL, b"a").error is None
        settled(town)
        reads = town.node(1).data.coordinator._reads._tracked
        assert reads is not None
        settle, frozen, release = reads.settled, [0], asyncio.Event()

        async def late(*given: Any) -> Any:
            frozen[0] += 1
            await release.wait()
            return await settle(*given)

        reads.settled = late  # type: ignore[method-assign]
        reading = begin_look(town, 1, KEY, 100)
        town.until(lambda: frozen[0] == 1)
        assert write(town, 2, QUORUM, b"b").error is None
        settled(town)
        assert [value for _, _, value in looked(town, begin_look(town, 2, KEY, 100))] == [b"b"] * 10
        town.begin(1, lambda node: _set(release))
        values = {value for _, _, value in looked(town, reading)}
        assert values in ({b"a"}, {b"b"})
        for number in (1, 2, 3):
            assert rows_read(town, number) == [b"b"] * 10


async def _set(event: asyncio.Event) -> None:
    event.set()


def test_scenario_9_what_comes_again_after_it_was_let_go_of_changes_nothing() -> None:
    with tracked(55) as town:
        replica = town.node(2).data.replica
        taken: list[WriteRequest] = []
        write_now = replica.write

        def noted(request: WriteRequest, answer: Callable[[Any], None]) -> None:
            taken.append(request)
            write_now(request, answer)

        replica.write = noted  # type: ignore[method-assign]
        assert write(town, 1, ALL, b"a").error is None
        replica.write = write_now  # type: ignore[method-assign]
        assert len(taken) == 1 and taken[0].tracking is not None
        assert write(town, 1, ALL, b"b").error is None
        settled(town)
        before = held(town, 2)
        for is_started_again in (False, True):
            if is_started_again:
                town.process(2).crash("power")
                back(town, 2)
                settled(town)
            assert isinstance(comes_again(town, 2, taken[0]), int)
            assert held(town, 2) == before and unreconciled(town, 2) == 0
            assert rows_read(town, 2) == [b"b"] * 10
        # Of a table that was emptied meanwhile it is refused.
        assert town.finish(town.submit(1, ChangeSchema(EmptyTable("ks", "t")))).error is None
        town.agreed(1, 2, 3)
        assert isinstance(comes_again(town, 2, taken[0]), StaleEpoch)
        assert rows_read(town, 2) == [] and rows_of(town, 2) == 0


def comes_again(town: Town, number: int, request: WriteRequest) -> int | LockstepError:
    """Deliver a write; the epoch it was accepted at, or the refusal."""

    async def work(node: Node) -> int:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        node.data.replica.write(request, answer.set_result)
        told = await answer
        if isinstance(told, LockstepError):
            raise told
        return int(told.accepted_epoch)

    outcome = town.finish(town.begin(number, work))
    return outcome.error if outcome.error is not None else int(outcome.value)


#: Where a replica may be when its power fails: before, in and after a sync.
PLACES = (
    *("replica.write.accepted", "replica.write.applied", "storage.sync.started", SYNC_IN_FLIGHT),
    "storage.sync.finished",
)


@pytest.mark.parametrize("label", PLACES)
def test_scenario_12_ids_that_are_claimed_are_those_of_the_data_that_is_there(label: str) -> None:
    """After a power cut, and after another one, before any other replica helped."""
    keys = [b"c%d" % number for number in range(8)]
    with tracked(56) as town:
        paused(town, 1, 3)
        town.loaded = lambda name, node: setattr(node.data.reconciler, "is_paused", name == "n2")
        reached = town.world.probes.process_counts.get(("n2", label), 0)
        town.world.probes.add(CrashRule(label=label, process="n2", kind="power", hit=reached + 4))
        writing = []
        for key in keys:
            writing.append(begin_write(town, 1, QUORUM, key=key))
            town.wait(0.003)
        town.until(lambda: not town.process(2).alive, 5)
        for outcome in writing:
            assert town.finish(outcome).error is None
        for _ in range(2):
            back(town, 2)
            claimed = sum(one.count for one in held(town, 2).values())
            there = [rows_of(town, 2, key) for key in keys]
            assert set(there) <= {0, 10} and sum(there) == 10 * claimed
            town.process(2).crash("power")
        town.loaded = lambda name, node: None
        back(town, 2)
        paused(town, 1, 2, 3, is_paused=False)
        settled(town)
        assert [rows_of(town, 2, key) for key in keys] == [10] * len(keys)


def test_scenario_13_clocks_that_jump_give_no_id_twice_and_refuse_no_write() -> None:
    with tracked(57) as town:
        jumps_s = (0, -3600, 10 * 365 * 86400, -5 * 365 * 86400, 3600)
        keys = []
        for turn, jump_s in enumerate(jumps_s):
            town.process(1).jump_wall(jump_s)
            for number in range(4):
                key = b"j%d-%d" % (turn, number)
                keys.append(key)
                assert write(town, 1 + number % 2, key=key).error is None
            if turn == 2:
                town.process(1).crash("power")
                back(town, 1)
        settled(town)
        for number in (1, 2, 3):
            assert sum(one.count for one in held(town, number).values()) == len(keys)
            for key in keys:
                assert rows_read(town, number, key=key) == [b"v"] * 10


def test_scenario_16_two_data_centres_that_were_cut_apart_end_with_the_union() -> None:
    with Town(58, 6) as town:
        for number in (4, 5, 6):
            town.placement[f"n{number}"] = 'num_tokens=2\ndc="dc2"'
        town.found()
        options = (("class", "NetworkTopologyStrategy"), ("dc1", "3"), ("dc2", "3"))
        wanted = CreateKeyspace("ks", options, replication_type="tracked")
        assert town.finish(town.submit(1, ChangeSchema(wanted))).error is None
        made = CreateTable("ks", "t", "00000000-0000-4000-8000-000000000001", COLUMNS)
        assert town.finish(town.submit(1, ChangeSchema(made))).error is None
        everybody = (1, 2, 3, 4, 5, 6)
        town.agreed(*everybody)
        for number in everybody:
            town.node(number).data.reconciler.cohort_after_s = 6.0
        sides = ((1, 2, 3), (4, 5, 6))
        for number in sides[0]:
            isolated(town, number, sides[1])
        keys = [b"x%d" % number for number in range(4)]
        last: dict[bytes, bytes] = {}
        for turn in range(18):
            key, value = keys[turn % len(keys)], b"%d" % turn
            number = sides[turn // 3 % 2][turn % 3]
            assert write(town, number, LOCAL_QUORUM, value, key).error is None
            assert rows_read(town, number, level=LOCAL_QUORUM, key=key) == [value] * 10
            last[key] = value
            town.wait(1.0)
        exchanged = [0]
        for number in everybody:
            _count_told(town.node(number), exchanged)
        for number in sides[0]:
            isolated(town, number, sides[1], heal=True)

        def alike() -> bool:
            found = [held(town, number) for number in everybody]
            open_or_apart = any(
                logs.open.count or logs.apart.count
                for number in everybody
                for logs in town.node(number).data.reconciler.journal.shards.values()
            )
            return all(one == found[0] for one in found) and not open_or_apart

        town.until(alike, 120)
        for number in everybody:
            for key in keys:
                assert rows_of(town, number, key) == 10
                assert rows_read(town, number, level=Consistency.ONE, key=key) == [last[key]] * 10
        shards = len(held(town, 1))
        assert 0 < exchanged[0] < shards << 20, "what replicas told each other, in bytes"


def _count_told(node: Node, exchanged: list[int]) -> None:
    """Count the bytes of what a node says that it holds."""
    reconciler = node.data.reconciler
    told_of = reconciler._told_of

    def counted(*given: Any) -> Any:
        told = told_of(*given)
        exchanged[0] += len(encode(told))
        return told

    reconciler._told_of = counted  # type: ignore[method-assign]


def test_scenario_17_what_comes_late_comes_to_all_and_splits_nothing() -> None:
    """An id that is older than all that was reconciled meanwhile: one replica alone had it, and the copies
    for the others come much later. It is not refused; in the end all hold it, and show what is newest."""
    with tracked(59) as town:
        replica = town.node(1).data.replica
        lone_write(town)
        (early,) = (shard for shard, logs in replica.journal.shards.items() if logs.open.count)  # type: ignore[union-attr]
        paused(town, 2, 3, is_paused=False)
        away(town, 1, (2, 3))
        other = b"other"
        for number in range(6):
            assert write(town, 2, value=b"%d" % number, key=other).error is None
        town.wait(20)
        back(town, 1)
        settled(town)
        assert [rows_of(town, number) for number in (1, 2, 3)] == [10, 10, 10]
        assert held(town, 1)[early] == held(town, 2)[early] == held(town, 3)[early]
        # What is older than a deletion that all know of does not undo it.
        paused(town, 1, 2, 3)
        late: list[tuple[int, Any]] = []

        async def kept_back(node: Node) -> None:
            change = Change("t", KEY, node.runtime.clock.wall_us(), QUORUM, TIMEOUT_MS, ((3, b"old"),))
            made = mutation_for(change, table_of(node), node.data.new_mutation_id(), 1)
            plan = node.data.coordinator.plans.plan_of(made, QUORUM)
            late.append((plan.epoch, node.data.replica.keeping.give(plan, made)))
            late.append((0, made))

        assert town.finish(town.begin(1, kept_back)).error is None
        town.wait(0.1)
        deleting = Change("t", KEY, 0, ALL, TIMEOUT_MS, delete_partition=True)
        assert town.finish(begin_change(town, 2, deleting)).error is None
        (epoch, given), (_, made) = late
        for number in (2, 3):
            request = WriteRequest(epoch, 0, made, tracking=given)
            assert isinstance(comes_again(town, number, request), int)
        paused(town, 1, 2, 3, is_paused=False)
        settled(town)
        for number in (1, 2, 3):
            assert rows_read(town, number) == []


def begin_change(town: Town, number: int, change: Change) -> Outcome:
    """The change with the time of now."""

    async def work(node: Node) -> None:
        now_us = node.runtime.clock.wall_us()
        values = {name: getattr(change, name) for name in change.__struct_fields__}
        new = Change(**{**values, "timestamp_us": now_us})
        made = mutation_for(new, table_of(node), node.data.new_mutation_id(), now_us // 1_000_000)
        await node.data.coordinator.write(made, change.consistency, TIMEOUT_MS)

    return town.begin(number, work)


def test_scenario_18_entries_go_only_when_all_have_them_and_give_their_room_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(condition_watches, "JOURNAL_LARGE_BYTES", 4000)
    with tracked(60) as town:
        node = town.node(1)
        journal, conditions = node.data.reconciler.journal, node.context.conditions
        away(town, 3)
        counts = []
        for number in range(24):
            assert write(town, 1, value=b"%d" % number, key=b"g%d" % number).error is None
            counts.append(journal.entry_count)
        town.wait(20)
        assert counts == [*range(1, 25)] and journal.entry_count == 24, "nothing goes while one lacks it"
        assert {row["kept_for"] for row in journal_rows(node) if row["entries"]} == {(3,)}
        assert [one.code for one in conditions.current() if one.code == "JOURNAL_LARGE"]
        # It starts again with what it kept, and keeps that.
        town.process(1).crash("power")
        back(town, 1)
        assert unreconciled(town, 1) == 24
        back(town, 3)
        settled(town)
        town.wait(2)
        node = town.node(1)
        assert node.data.reconciler.journal.entry_count == 0 and node.data.reconciler.journal_bytes == 0
        assert not [one for one in node.context.conditions.current() if one.code == "JOURNAL_LARGE"]
        assert [rows_of(town, 3, b"g%d" % number) for number in range(24)] == [10] * 24


def test_scenario_19_what_one_has_let_go_of_and_another_one_tells_holds_no_read_up() -> None:
    with tracked(61) as town:
        assert write(town, 1, ALL, b"a").error is None
        settled(town)
        paused(town, 2, 3)
        assert write(town, 1, ALL, b"b").error is None
        # The first one asks and lets go; the others answer, and go on to tell what they hold.
        town.until(lambda: unreconciled(town, 1) == 0)
        town.node(1).data.reconciler.is_paused = True
        journals = [town.node(number).data.reconciler.journal for number in (1, 2, 3)]
        counts = [journal.entry_count for journal in journals]
        assert counts[0] == 0 and all(counts[1:]), "one has let go of it, and the others have not"
        for number in (1, 2, 3):
            for third in (1, 2, 3):
                if third == number:
                    continue
                isolated(town, third, [other for other in (1, 2, 3) if other != third])
                began_s = town.world.now_s()
                assert rows_read(town, number) == [b"b"] * 10
                assert town.world.now_s() - began_s < 0.5
                isolated(town, third, [other for other in (1, 2, 3) if other != third], heal=True)


def test_scenario_29_a_replica_that_stalls_holds_no_read_up() -> None:
    with tracked(62) as town:
        lone_write(town, holder=3)
        assert write(town, 1, ALL, b"w", key=b"q").error is None
        for stalls in (2, 1, 3):
            asked = next(number for number in (1, 2, 3) if number != stalls)
            alive = town.node(asked).membership.liveness.alive
            assert alive(own_id(town, stalls))
            town.process(stalls).pause_for(5.0)
            for _ in range(4):
                began_s = town.world.now_s()
                assert rows_read(town, asked, key=b"q") == [b"w"] * 10
                assert town.world.now_s() - began_s < TIMEOUT_MS / 1000
            # What the third one alone holds is seen whole where it is asked, and not at all where it stalls.
            seen = rows_read(town, asked)
            assert seen in ([], [b"v"] * len(ROWS))
            town.wait(7.0)
            town.until(lambda stalls=stalls, alive=alive: alive(own_id(town, stalls)))  # type: ignore[misc]
