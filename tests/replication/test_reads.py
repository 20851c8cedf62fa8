from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.coordination import reads
from lockstep.internode import verbs
from lockstep.storage.rows.reconcile import merge_partitions
from lockstep.storage.rows.visible import live_view
from lockstep.values.errors import (
    CorruptFile,
    ReadFailure,
    ReadTimeout,
    Unavailable,
)
from lockstep.values.ids import Consistency, mutation_id
from lockstep.values.rows import Cell, Mutation, Partition, Position, ReadCommand, ReadResult, Row
from lockstep.values.tokens import TOKEN_MAX

from .clusters import (
    COLUMN,
    TABLE_ID,
    ScriptedNode,
    deletion,
    key_of,
    make_cluster,
    make_nodes,
    read_one,
    read_range,
    shown,
    upsert,
    whole_ring,
)
from .support import run

QUORUM = Consistency.QUORUM
Answer = Callable[[ReadCommand], ReadResult]


def give(nodes: list[ScriptedNode], *mutations: Mutation) -> None:
    for node in nodes:
        for mutation in mutations:
            node.engine.apply(mutation)


def test_a_read_at_one_asks_only_this_node() -> None:
    async def test() -> None:
        wire, nodes = make_nodes(3, whole_ring(5, [3, 1, 2]))
        give(nodes[:1], upsert(1, b"a", b"x"))
        result = await nodes[0].coordinator.read(read_one(1), Consistency.ONE, 1000)
        assert shown(result) == [(1, b"a", b"x")]
        assert not wire.log

    run(test)


def test_a_quorum_read_merges_and_repairs_before_it_answers() -> None:
    async def test() -> None:
        _, nodes = make_nodes(3, whole_ring(5, [1, 2, 3]))
        give(nodes[:1], upsert(1, b"a", b"new", 20), upsert(1, b"b", b"mine", 5, 2))
        give(nodes[1:2], upsert(1, b"a", b"old", 10), upsert(1, b"c", b"yours", 5, 3))
        wanted = [(1, b"a", b"new"), (1, b"b", b"mine"), (1, b"c", b"yours")]
        assert shown(await nodes[0].coordinator.read(read_one(1), QUORUM, 1000)) == wanted
        for node in nodes[:2]:
            assert shown(await node.engine.read(read_one(1))) == wanted
        assert not nodes[2].engine.applied, "two of three suffice"

    run(test)


def test_equal_answers_cost_no_repair() -> None:
    async def test() -> None:
        wire, nodes = make_nodes(3, whole_ring(5, [1, 2, 3]))
        give(nodes, upsert(1), deletion(1, b"d", 5))
        await nodes[0].coordinator.read(read_one(1), Consistency.ALL, 1000)
        assert {verb for _, verb in wire.log} == {verbs.READ}

    run(test)


def test_a_deletion_that_one_replica_missed_is_repaired_not_undone() -> None:
    async def test() -> None:
        _, nodes = make_nodes(3, whole_ring(5, [1, 2, 3]))
        give(nodes, upsert(1, b"a", b"x", 5))
        give(nodes[:1], deletion(1, b"a", 9))
        assert shown(await nodes[0].coordinator.read(read_one(1), QUORUM, 1000)) == []
        assert shown(await nodes[1].coordinator.read(read_one(1), Consistency.ONE, 1000)) == []

    run(test)


def test_what_a_quorum_read_returned_every_later_quorum_read_returns() -> None:
    """Node 1 alone holds a write that failed; once read, any two replicas tell it."""

    async def test() -> None:
        wire, nodes = make_nodes(3, whole_ring(5, [1, 2, 3]))
        give(nodes[:1], upsert(1, b"a", b"half", 5))
        first = shown(await nodes[0].coordinator.read(read_one(1), QUORUM, 1000))
        assert first == [(1, b"a", b"half")]
        wire.down = {("n1", 1)}
        nodes[2].dead = {1}
        assert shown(await nodes[2].coordinator.read(read_one(1), QUORUM, 1000)) == first

    run(test)


def test_a_repair_nobody_takes_is_a_timeout_and_never_an_answer() -> None:
    async def test() -> None:
        wire, nodes = make_nodes(3, whole_ring(5, [1, 2, 3]))
        give(nodes[:1], upsert(1))
        wire.lose = lambda address, verb: verb == verbs.READ_REPAIR
        with pytest.raises(ReadTimeout) as caught:
            await nodes[0].coordinator.read(read_one(1), QUORUM, 120)
        assert (caught.value.received, caught.value.required, caught.value.data_present) == (1, 2, True)

    run(test)


def test_a_repair_goes_to_another_replica_when_the_lacking_one_is_lost() -> None:
    async def test() -> None:
        wire, nodes = make_nodes(3, whole_ring(5, [1, 2, 3]))
        give(nodes[:1], upsert(1, b"a", b"x"))
        wire.lose = lambda address, verb: verb == verbs.READ_REPAIR and address == ("n2", 1)
        assert shown(await nodes[0].coordinator.read(read_one(1), QUORUM, 3000)) == [(1, b"a", b"x")]
        assert shown(await nodes[2].engine.read(read_one(1))) == [(1, b"a", b"x")]

    run(test)


def test_a_repair_during_a_move_includes_the_pending_replica() -> None:
    async def test() -> None:
        _, nodes = make_nodes(4, whole_ring(6, [1, 2, 3], [1, 2, 3, 4], group_epoch=6))
        give(nodes[:1], upsert(1, b"a", b"x"))
        await nodes[0].coordinator.read(read_one(1), QUORUM, 1000)
        held = [node.node for node in nodes if shown(await node.engine.read(read_one(1)))]
        assert len(held) >= 3

    run(test)


def test_a_replica_that_holds_everything_counts_and_is_not_written_again() -> None:
    async def test() -> None:
        wire, nodes = make_nodes(3, whole_ring(5, [1, 2, 3]))
        give(nodes[:1], upsert(1))
        await nodes[0].coordinator.read(read_one(1), QUORUM, 1000)
        assert [address for address, verb in wire.log if verb == verbs.READ_REPAIR] == [("n2", 1)]
        assert [len(node.engine.applied) for node in nodes] == [1, 1, 0]

    run(test)


def test_a_reader_emptied_before_its_repair_arrives_gets_the_whole_and_not_only_what_it_lacked() -> None:
    async def test() -> None:
        wire, nodes = make_nodes(3, whole_ring(5, [1, 2, 3]))
        give(nodes[:2], upsert(1, b"a", b"both", 5, 1))
        give(nodes[:1], upsert(1, b"a", b"newer", 6, 2), upsert(1, b"b", b"one", 5, 3))
        whole = shown(await nodes[0].engine.read(read_one(1)))

        def empty(address: tuple[str, int], verb: int) -> None:
            if verb == verbs.READ_REPAIR and nodes[1].cluster.epoch == 5:
                for node in nodes:
                    node.cluster = whole_ring(7, [1, 2, 3], group_epoch=7)
                nodes[1].engine.partitions.clear()

        wire.before = empty
        give(nodes[:2], upsert(1, b"c", b"both", 5, 4))
        wire.lose = lambda address, verb: address == ("n3", 1)
        result = await nodes[0].coordinator.read(read_one(1), QUORUM, 2000)
        assert shown(result) == [*whole, (1, b"c", b"both")]
        held = shown(await nodes[1].engine.read(read_one(1)))
        assert set(shown(result)) <= set(held)

    run(test)


def test_a_repair_is_fenced_like_a_write() -> None:
    async def test() -> None:
        wire, nodes = make_nodes(4, whole_ring(5, [1, 2, 3]))
        give(nodes[:1], upsert(1, b"a", b"x"))
        after = whole_ring(6, [1, 3, 4], group_epoch=6, dcs={2: "dc1"})

        def move(address: tuple[str, int], verb: int) -> None:
            if verb == verbs.READ_REPAIR:
                for node in nodes[1:]:
                    node.cluster = after

        wire.before = move
        result = await nodes[0].coordinator.read(read_one(1), QUORUM, 2000)
        assert shown(result) == [(1, b"a", b"x")]
        assert not nodes[1].engine.applied
        held = [node.node for node in nodes if shown(await node.engine.read(read_one(1)))]
        assert len(set(held) & {1, 3, 4}) >= 2

    run(test)


# -- plans and failures ---------------------------------------------------------------------------


def test_a_stale_reader_learns_and_reads_from_the_new_replicas() -> None:
    async def test() -> None:
        _, nodes = make_nodes(4, whole_ring(5, [1, 2, 3]))
        after = whole_ring(8, [2, 3, 4], group_epoch=7, dcs={1: "dc1"})
        for node in nodes[1:]:
            node.cluster = after
        give(nodes[1:], upsert(1, b"a", b"x"))
        assert shown(await nodes[0].coordinator.read(read_one(1), QUORUM, 1000)) == [(1, b"a", b"x")]
        assert nodes[0].cluster.epoch == 8

    run(test)


def test_a_range_that_left_while_it_was_read_is_read_again() -> None:
    """The replica's store is emptied under the running read: the empty answer must not be used."""

    async def test() -> None:
        _, nodes = make_nodes(2, whole_ring(5, [1], factors={"": 1}, dcs={2: "dc1"}))
        give(nodes[1:], upsert(1, b"a", b"x"))

        def leave() -> None:
            for node in nodes:
                node.cluster = whole_ring(6, [2], group_epoch=6, factors={"": 1}, dcs={1: "dc1"})

        nodes[0].engine.on_read = leave
        result = await nodes[0].coordinator.read(read_one(1), Consistency.ONE, 1000)
        assert shown(result) == [(1, b"a", b"x")]

    run(test)


def test_a_replica_that_learns_of_a_change_while_it_reads_does_not_answer() -> None:
    """Only the replica learns of it: the coordinator must be told, for its own check sees nothing."""

    async def test() -> None:
        _, nodes = make_nodes(3, whole_ring(5, [2], factors={"": 1}, dcs={1: "dc1", 3: "dc1"}))
        after = whole_ring(6, [3], group_epoch=6, factors={"": 1}, dcs={1: "dc1", 2: "dc1"})
        nodes[2].cluster = after
        give(nodes[2:], upsert(1, b"a", b"x"))

        def leave() -> None:
            nodes[1].cluster = after

        nodes[1].engine.on_read = leave
        nodes[1].engine.reads_now = False
        result = await nodes[0].coordinator.read(read_one(1), Consistency.ONE, 1000)
        assert shown(result) == [(1, b"a", b"x")]

    run(test)


def test_a_coordinator_that_learns_of_a_change_while_it_waits_asks_the_new_replicas() -> None:
    """Only the coordinator learns of it: the old replica answers in good faith."""

    async def test() -> None:
        _, nodes = make_nodes(3, whole_ring(5, [2], factors={"": 1}, dcs={1: "dc1", 3: "dc1"}))
        after = whole_ring(6, [3], group_epoch=6, factors={"": 1}, dcs={1: "dc1", 2: "dc1"})
        nodes[2].cluster = after
        give(nodes[2:], upsert(1, b"a", b"x"))

        def learn() -> None:
            nodes[0].cluster = after

        nodes[1].engine.on_read = learn
        result = await nodes[0].coordinator.read(read_one(1), Consistency.ONE, 1000)
        assert shown(result) == [(1, b"a", b"x")]

    run(test)


@pytest.mark.parametrize("reads_now", [False, True])
def test_another_replica_is_asked_when_one_is_lost_or_fails(reads_now: bool) -> None:
    async def test() -> None:
        wire, nodes = make_nodes(3, whole_ring(5, [1, 2, 3]))
        give(nodes, upsert(1, b"a", b"x"))
        wire.lose = lambda address, verb: address == ("n2", 1)
        assert shown(await nodes[0].coordinator.read(read_one(1), QUORUM, 400)) == [(1, b"a", b"x")]
        wire.lose = lambda address, verb: False

        def broken(command: ReadCommand) -> ReadResult:
            raise CorruptFile("sst", 3, "checksum")

        for node in nodes:
            node.engine.reads_now = reads_now
        nodes[0].engine.answer = broken  # type: ignore[method-assign]
        assert shown(await nodes[0].coordinator.read(read_one(1), QUORUM, 400)) == [(1, b"a", b"x")]
        assert shown(await nodes[0].coordinator.read(read_one(1), Consistency.ONE, 400)) == [(1, b"a", b"x")]
        nodes[1].engine.answer = broken  # type: ignore[method-assign]
        with pytest.raises(ReadFailure) as caught:
            await nodes[0].coordinator.read(read_one(1), QUORUM, 400)
        assert caught.value.failures == 2

    run(test)


def test_replicas_are_asked_one_after_another_while_those_asked_stay_silent() -> None:
    async def test() -> None:
        wire, nodes = make_nodes(5, whole_ring(5, [1, 2, 3, 4, 5], factors={"": 5}))
        give(nodes, upsert(1, b"a", b"x"))
        silent = {nodes[1].internode.address, nodes[2].internode.address}
        wire.lose = lambda address, verb: address in silent
        result = await nodes[0].coordinator.read(read_one(1), QUORUM, 400)
        assert shown(result) == [(1, b"a", b"x")]

    run(test)


def test_too_few_answers_are_a_timeout_with_counts_and_too_few_live_nodes_unavailable() -> None:
    async def test() -> None:
        wire, nodes = make_nodes(3, whole_ring(5, [1, 2, 3]))
        give(nodes, upsert(1))
        wire.lose = lambda address, verb: True
        with pytest.raises(ReadTimeout) as caught:
            await nodes[0].coordinator.read(read_one(1), QUORUM, 80)
        assert (caught.value.received, caught.value.required, caught.value.data_present) == (1, 2, True)
        nodes[0].dead = {2, 3}
        with pytest.raises(Unavailable) as unavailable:
            await nodes[0].coordinator.read(read_one(1), QUORUM, 80)
        assert (unavailable.value.required, unavailable.value.alive) == (2, 1)

    run(test)


def test_near_and_live_replicas_are_asked_first() -> None:
    async def test() -> None:
        dcs = {1: "a", 2: "a", 3: "a", 4: "b", 5: "b", 6: "b"}
        cluster = whole_ring(5, [4, 5, 2, 6, 3, 1], factors={"a": 3, "b": 3}, dcs=dcs)
        wire, nodes = make_nodes(6, cluster)
        nodes[0].dead = {2}
        await nodes[0].coordinator.read(read_one(1), Consistency.LOCAL_QUORUM, 1000)
        assert [address for address, _ in wire.log] == [("n3", 1)]
        wire.log.clear()
        nodes[0].dead = set()
        await nodes[0].coordinator.read(read_one(1), Consistency.EACH_QUORUM, 1000)
        assert sorted(address[0] for address, _ in wire.log) == ["n2", "n4", "n5"]

    run(test)


# -- limits ---------------------------------------------------------------------------------------


def test_rows_hidden_behind_another_replicas_deletions_are_asked_for() -> None:
    async def test() -> None:
        _, nodes = make_nodes(3, whole_ring(5, [1, 2, 3]))
        rows = [upsert(1, b"%03d" % i, b"v%d" % i, 5, i) for i in range(40)]
        give(nodes, *rows)
        give(nodes[:1], *(deletion(1, b"%03d" % i, 9, 100 + i) for i in range(30)))
        result = await nodes[0].coordinator.read(read_one(1, row_limit=5), QUORUM, 2000)
        assert [c for _, c, _ in shown(result)] == [b"030", b"031", b"032", b"033", b"034"]
        assert result.more and result.end is not None and result.end.clustering == b"034"

    run(test)


def test_a_static_row_is_no_row_of_its_own_where_a_short_answer_hides_the_rows() -> None:
    async def test() -> None:
        _, nodes = make_nodes(3, whole_ring(5, [1, 2, 3]))
        static = Row(b"", cells=(Cell(COLUMN, b"s", 1),))
        give(nodes, Mutation(TABLE_ID, 1, key_of(1), mutation_id(97, 1, 1), 1, static=static))
        give(nodes, *(upsert(1, b"%d" % i, b"v", 5, i) for i in range(4)))
        give(nodes[1:2], deletion(1, b"0", 9, 100))
        for command in (
            read_one(1, row_limit=1, reads_static=True),
            read_range(row_limit=1, reads_static=True),
        ):
            result = await nodes[0].coordinator.read(command, Consistency.ALL, 2000)
            assert [clustering for _, clustering, _ in shown(result)] == [b"1"]
            assert result.end is not None and result.end.clustering == b"1"

    run(test)


def test_a_page_of_rows_so_large_that_each_answer_holds_one_is_still_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reads, "SHORT_READ_ROUNDS_MAX", 3)

    async def test() -> None:
        _, nodes = make_nodes(3, whole_ring(5, [1, 2, 3]))
        give(nodes, *(upsert(1, b"%d" % i, b"v", 5, i) for i in range(9)))
        for node in nodes:
            whole = node.engine.answer

            def one_row(command: ReadCommand, whole: Answer = whole) -> ReadResult:
                return whole(msgspec.structs.replace(command, row_limit=1))

            node.engine.answer = one_row  # type: ignore[method-assign]
        result = await nodes[0].coordinator.read(read_one(1, row_limit=8), QUORUM, 2000)
        assert len(shown(result)) == 8
        give(nodes, *(deletion(1, b"%d" % i, 9, 100 + i) for i in range(9)))
        for node in nodes:
            node.engine.answer = nothing_yet  # type: ignore[method-assign]
        with pytest.raises(ReadFailure):
            await nodes[0].coordinator.read(read_one(1, row_limit=8), QUORUM, 2000)

    run(test)


def nothing_yet(command: ReadCommand) -> ReadResult:
    """Dead rows without end."""
    last = command.after.clustering if command.after is not None else None
    return ReadResult((), True, Position(1, key_of(1), (last or b"") + b"x"))


def test_a_partition_limit_counts_merged_rows() -> None:
    async def test() -> None:
        _, nodes = make_nodes(3, whole_ring(5, [1, 2, 3]))
        for token in (1, 2, 3):
            give(nodes, *(upsert(token, b"%d" % i, b"v", 5, token * 10 + i) for i in range(6)))
            give(nodes[1:2], *(deletion(token, b"%d" % i, 9, token * 10 + i) for i in range(3)))
        command = read_range(partition_row_limit=2)
        result = await nodes[0].coordinator.read(command, QUORUM, 2000)
        assert [(t, c) for t, c, _ in shown(result)] == [
            (token, clustering) for token in (1, 2, 3) for clustering in (b"3", b"4")
        ]

    run(test)


def test_a_partition_that_gave_all_it_may_is_not_read_to_its_end() -> None:
    async def test() -> None:
        _, nodes = make_nodes(3, whole_ring(5, [1, 2, 3]))
        give(nodes, *(upsert(1, b"%03d" % i, b"v", 5, i) for i in range(300)))
        give(nodes, upsert(2, b"a", b"v", 5, 500))
        command = read_range(partition_row_limit=1, row_limit=3)
        result = await nodes[0].coordinator.read(command, QUORUM, 2000)
        assert [token for token, _, _ in shown(result)] == [1, 2]
        assert nodes[0].engine.reads <= 2

    run(test)


def test_a_range_read_walks_all_data_ranges_with_their_own_replicas() -> None:
    async def test() -> None:
        cluster = make_cluster(
            5, [(0, [1], [1], 1), (10, [2], [2], 1), (TOKEN_MAX, [3], [3], 1)], factors={"": 1}
        )
        _, nodes = make_nodes(3, cluster)
        for token, owner in ((-5, 0), (0, 0), (1, 1), (10, 1), (11, 2), (500, 2)):
            give([nodes[owner]], upsert(token, b"a", b"%d" % token, 5, token + 10))
        wanted = [-5, 0, 1, 10, 11, 500]
        result = await nodes[0].coordinator.read(read_range(), Consistency.ONE, 2000)
        assert [token for token, _, _ in shown(result)] == wanted
        assert not result.more

        got: list[int] = []
        command = read_range(row_limit=2)
        for _ in range(10):
            page = await nodes[0].coordinator.read(command, Consistency.ONE, 2000)
            got += [token for token, _, _ in shown(page)]
            if not page.more:
                break
            command = read_range(row_limit=2, after=page.end)
        assert got == wanted

    run(test)


def _three_alike() -> list[ScriptedNode]:
    nodes = [1, 2, 3]
    cluster = make_cluster(
        5, [(0, nodes, nodes, 1), (10, [2, 3, 1], [2, 3, 1], 3), (TOKEN_MAX, nodes, nodes, 1)]
    )
    _, made = make_nodes(3, cluster)
    give(made, *(upsert(token, b"a", b"%d" % token, 5, token + 10) for token in (-5, 0, 1, 10, 11, 500)))
    return made


def test_ranges_with_the_same_replicas_are_read_by_one_question() -> None:
    async def test() -> None:
        nodes = _three_alike()
        result = await nodes[0].coordinator.read(read_range(), QUORUM, 2000)
        assert [token for token, _, _ in shown(result)] == [-5, 0, 1, 10, 11, 500]
        assert sum(node.engine.reads for node in nodes) == 2

    run(test)


def test_ranges_are_read_one_by_one_where_each_replica_lacks_another() -> None:
    async def test() -> None:
        nodes = _three_alike()
        for lost, node in zip((0, 10, TOKEN_MAX), nodes, strict=True):

            def answer(command: ReadCommand, lost: int = lost, node: ScriptedNode = node) -> ReadResult:
                if command.left < lost <= command.right:
                    raise CorruptFile("sst", 3, "checksum")
                return type(node.engine).answer(node.engine, command)

            node.engine.answer = answer  # type: ignore[method-assign]
        result = await nodes[0].coordinator.read(read_range(), QUORUM, 2000)
        assert [token for token, _, _ in shown(result)] == [-5, 0, 1, 10, 11, 500]

    run(test)


def test_a_range_cut_by_a_change_during_the_read_is_planned_again() -> None:
    async def test() -> None:
        before = whole_ring(5, [1], factors={"": 1}, dcs={2: "dc1"})
        after = make_cluster(6, [(0, [1], [1], 1), (TOKEN_MAX, [2], [2], 6)], factors={"": 1})
        _, nodes = make_nodes(2, before)
        give(nodes[:1], upsert(-5, b"a", b"x", 5, 1))
        give(nodes[1:], upsert(7, b"a", b"y", 5, 2))

        def move() -> None:
            for node in nodes:
                node.cluster = after

        nodes[0].engine.on_read = move
        result = await nodes[0].coordinator.read(read_range(), Consistency.ONE, 2000)
        assert [token for token, _, _ in shown(result)] == [-5, 7]

    run(test)


def written_times(held: list[list[Mutation]]) -> dict[bytes, int]:
    """Value -> when it was written; values are unique."""
    return {
        cell.value: cell.timestamp_us
        for mutations in held
        for mutation in mutations
        for row in mutation.rows
        for cell in row.cells
        if cell.value is not None
    }


def merged_times(held: list[list[Mutation]]) -> dict[tuple[int, bytes], int]:
    """Row -> time of the newest thing these replicas know of it."""
    times: dict[tuple[int, bytes], int] = {}
    for mutations in held:
        for mutation in mutations:
            for row in mutation.rows:
                known = [cell.timestamp_us for cell in row.cells]
                known += [row.deletion.timestamp_us] if row.deletion is not None else []
                place = (mutation.token, row.clustering)
                times[place] = max([times.get(place, 0), *known])
    return times


def obvious(held: list[list[Mutation]], command: ReadCommand) -> list[tuple[int, bytes, bytes]]:
    """All data of all given replicas, merged whole, then cut: the answer without any cleverness."""
    by_key: dict[tuple[int, bytes], list[Partition]] = {}
    for mutations in held:
        for m in mutations:
            by_key.setdefault((m.token, m.key), []).append(Partition(m.token, m.key, rows=m.rows))
    rows: list[tuple[int, bytes, bytes]] = []
    for place in sorted(by_key):
        merged = merge_partitions(by_key[place], reverse=command.reverse)
        live = live_view(merged, command.now_s)
        limit = command.partition_row_limit or 1 << 30
        rows += shown(ReadResult((Partition(live.token, live.key, rows=live.rows[:limit]),)))
    return rows[: command.row_limit or 1 << 30]


def diverged(seed: int) -> tuple[list[ScriptedNode], list[list[Mutation]]]:
    """Three replicas of two ranges, each of which missed some of the writes and deletions."""
    rng = random.Random(seed)
    cluster = make_cluster(5, [(2, [1, 2, 3], [1, 2, 3], 1), (TOKEN_MAX, [2, 3, 1], [2, 3, 1], 1)])
    _, nodes = make_nodes(3, cluster)
    for number in range(rng.randrange(1, 40)):
        token, clustering = rng.randrange(5), b"%d" % rng.randrange(6)
        time_us = rng.randrange(1, 6)
        if rng.random() < 0.5:
            mutation = upsert(token, clustering, b"v%d" % number, time_us, number)
        else:
            mutation = deletion(token, clustering, time_us, number)
        give([node for node in nodes if rng.random() < 0.6], mutation)
    return nodes, [list(node.engine.applied) for node in nodes]


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), limit=st.integers(1, 6), reverse=st.booleans())
def test_pages_of_diverged_replicas_join_to_the_obvious_answer(seed: int, limit: int, reverse: bool) -> None:
    async def test() -> None:
        # At ALL every replica's data decides, so the twin knows what must come out.
        nodes, held = diverged(seed)
        wanted = obvious(held, read_range(row_limit=0, reverse=reverse))
        got: list[tuple[int, bytes, bytes]] = []
        after = None
        for _ in range(len(wanted) + 2):
            command = read_range(row_limit=limit, reverse=reverse, after=after)
            page = await nodes[0].coordinator.read(command, Consistency.ALL, 5000)
            assert len(shown(page)) == limit or not page.more
            got += shown(page)
            after = page.end
            if not page.more:
                break
        assert got == wanted

    run(test)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    limit=st.integers(0, 8),
    partition_limit=st.integers(1, 3),
    reverse=st.booleans(),
)
def test_partition_limits_over_diverged_replicas_give_the_obvious_answer(
    seed: int, limit: int, partition_limit: int, reverse: bool
) -> None:
    async def test() -> None:
        nodes, held = diverged(seed)
        command = read_range(row_limit=limit, partition_row_limit=partition_limit, reverse=reverse)
        result = await nodes[0].coordinator.read(command, Consistency.ALL, 5000)
        assert shown(result) == obvious(held, command)

    run(test)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_after_a_quorum_read_any_quorum_tells_at_least_the_same(seed: int) -> None:
    async def test() -> None:
        nodes, held = diverged(seed)
        all_times = written_times(held)
        first = shown(await nodes[0].coordinator.read(read_range(row_limit=0), QUORUM, 5000))
        for gone in (1, 2, 3):
            others = [node for node in nodes if node.node != gone]
            held = [list(node.engine.applied) for node in others]
            before = merged_times(held)
            for token, clustering, value in first:
                assert (token, clustering) in before, f"without node {gone} a row is unknown"
                assert before[token, clustering] >= all_times[value], f"without node {gone} {value!r} is lost"

    run(test)


def test_reads_end_when_the_coordinator_stops() -> None:
    async def test() -> None:
        wire, nodes = make_nodes(3, whole_ring(5, [2, 3], factors={"": 2}, dcs={1: "dc1"}))
        wire.lose = lambda address, verb: True
        reading = asyncio.ensure_future(nodes[0].coordinator.read(read_one(1), QUORUM, 60_000))
        await asyncio.sleep(0)
        nodes[0].coordinator.stop()
        with pytest.raises(ReadTimeout):
            await reading

    run(test)
