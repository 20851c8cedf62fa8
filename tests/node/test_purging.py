"""Purging on nodes: after the grace time, not while something may deliver older data, by recorded repairs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from msgspec.structs import replace

from lockstep.cql.compile.context import Context
from lockstep.handoff.hint_delivery import HandedOver
from lockstep.handoff.hint_store import Hint
from lockstep.handoff.hints import EXPIRED, OUTLIVED
from lockstep.internode import verbs
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.purging import purge_before_s
from lockstep.metadata.schema_change import ChangeSchema
from lockstep.node.node import Node
from lockstep.node.work import purging
from lockstep.schema.changes import AlterOptions
from lockstep.sim.plant import replaced
from lockstep.storage.store import Family
from lockstep.topology.repairs import BeginRepair
from lockstep.values.errors import Overloaded
from lockstep.values.ids import MUTATION_ID_BYTES, Consistency, NodeId
from lockstep.values.rows import ALL_ROWS, Cell, Deletion, Liveness, Mutation, ReadCommand, Row
from lockstep.values.tokens import FULL_RING, token_of
from tests.node.support import Town, keyspace, table
from tests.node.test_repairs import NODES, done, part, repair, table_id, write

GRACE_S = 30


@contextmanager
def purging_town(age_s: int = 0) -> Iterator[Town]:
    """Nothing younger than `age_s` is purged there."""
    with replaced((purging, "PURGE_AGE_S_MIN", age_s)), Town() as made:
        made.extra_lines = {f"n{number}": "[purge]\ninterval_ms=1000\n" for number in NODES}
        made.found()
        grace = ChangeSchema(AlterOptions("ks", "t", (("gc_grace_seconds", str(GRACE_S)),)))
        for change in (keyspace("ks"), table("ks"), grace):
            done(made, made.submit(1, change))
        made.agreed(*NODES)
        yield made


@pytest.fixture
def town() -> Iterator[Town]:
    with purging_town() as made:
        yield made


def now_s(town: Town, number: int = 1) -> int:
    return town.node(number).runtime.clock.wall_us() // 1_000_000


def delete_everywhere(town: Town, *numbers: int) -> None:
    """Ten partitions on all replicas, and their deletion on these."""
    for key in range(10):
        for number in NODES:
            write(town, number, key, 1000 + key)
        for number in numbers or NODES:
            write(town, number, key, 5000 + key, deletion=Deletion(5000 + key, now_s(town)))


def pairs(town: Town, number: int) -> int:
    """Fragments of the table on a node."""
    low, high = Family.DATA.value, bytes([Family.DATA.value[0] + 1])
    return len(list(town.node(number).data.store.scan(low, high)))


def test_deleted_data_and_its_tombstones_go_after_the_grace_time(town: Town) -> None:
    delete_everywhere(town)
    assert [pairs(town, number) for number in NODES] == [20, 20, 20]
    town.wait(GRACE_S * 0.8)
    assert all(pairs(town, number) >= 10 for number in NODES), "tombstones stay for the grace time"
    town.until(lambda: not any(pairs(town, number) for number in NODES))


def hold_by_a_session() -> None:
    with purging_town() as town:
        delete_everywhere(town)
        # Its driver does not know of it, so that it stays open.
        begin = BeginRepair(NodeId(2), (part(town.newest),), now_s(town), run=1 << 40)
        done(town, town.submit(1, begin))
        town.agreed(*NODES)
        town.wait(GRACE_S * 2)
        assert all(pairs(town, number) >= 10 for number in NODES)
        assert all(town.node(number).work.tombstone_purge.held_back for number in NODES)
        done(town, town.begin(1, lambda node: node.work.repairs.cancel(1, "enough")))
        town.until(lambda: not any(pairs(town, number) for number in NODES))


def test_an_open_session_holds_purging_back() -> None:
    hold_by_a_session()


def test_what_this_node_keeps_for_others_holds_purging_back(town: Town) -> None:
    delete_everywhere(town)
    made_us = now_s(town) * 1_000_000
    town.node(1).work.tombstone_purge._oldest_undelivered_us = lambda: made_us - 1_000_000
    town.until(lambda: not any(pairs(town, number) for number in NODES[1:]))
    town.wait(5)
    assert pairs(town, 1) >= 10


def set_mode(town: Town, mode: str) -> None:
    options = (("tombstone_gc", (("mode", mode), ("propagation_delay_in_seconds", "0"))),)
    done(town, town.submit(1, ChangeSchema(AlterOptions("ks", "t", options))))
    town.agreed(*NODES)


def test_by_repair_only_what_a_repair_of_all_replicas_covers_goes(town: Town) -> None:
    set_mode(town, "repair")
    delete_everywhere(town, 1, 2)
    town.wait(GRACE_S * 2)
    assert all(pairs(town, number) >= 10 for number in NODES)
    repair(town, 1, nodes=(NodeId(1), NodeId(3)))
    town.wait(GRACE_S)
    assert all(pairs(town, number) >= 10 for number in NODES), "two of three prove nothing"
    repair(town)
    town.until(lambda: not any(pairs(town, number) for number in NODES))


def test_a_node_that_is_started_often_comes_to_a_pass(town: Town) -> None:
    """Nobody remembers over a start when the last one was."""
    set_mode(town, "immediate")
    grace = ChangeSchema(AlterOptions("ks", "t", (("gc_grace_seconds", "864000"),)))
    done(town, town.submit(1, grace))
    delete_everywhere(town)
    town.process(3).crash()
    with replaced((purging, "FIRST_PASS_S_MAX", 5)):
        town.start(3)
        town.until(lambda: town.ready(3) and not pairs(town, 3))
    assert pairs(town, 1) and pairs(town, 2)


def before(cluster: ClusterMetadata, at_s: int) -> int:
    return purge_before_s(cluster, cluster.schema.by_name["ks"].tables[0], FULL_RING, at_s)


def test_the_modes_say_from_when_on_tombstones_may_go(town: Town) -> None:
    assert before(town.newest, 1000) == 1000 - GRACE_S
    for mode, wanted in (("immediate", 1000), ("disabled", 0), ("repair", 0)):
        set_mode(town, mode)
        assert before(town.newest, 1000) == wanted
    repair(town)
    [recorded] = town.newest.repairs.by_table[table_id(town.newest)]
    assert before(town.newest, 1000) == recorded.before_s > 0


def test_a_write_kept_for_others_is_older_than_what_a_repair_lets_go(town: Town) -> None:
    """Whoever keeps it may bring it back after the repair."""

    async def keep(node: Node) -> None:
        participant = node.data.repair_participant
        participant.times = replace(participant.times, oldest_undelivered_us=lambda: 5_900_000)

    done(town, town.begin(3, keep))
    repair(town)
    [recorded] = town.newest.repairs.by_table[table_id(town.newest)]
    assert recorded.before_s == 5


def test_a_write_under_way_as_a_repair_begins_is_older_than_what_that_lets_go(town: Town) -> None:
    """The hint that it may leave is not there yet when the repair asks who keeps what."""
    set_mode(town, "repair")
    at_us, name = town.node(1).runtime.clock.wall_us(), (3).to_bytes(4, "big")
    row = Row(b"\x00", Liveness(at_us), None, (Cell(2, b"v", at_us),))
    made = Mutation(table_id(town.newest), token_of(name), name, bytes(MUTATION_ID_BYTES), at_us, rows=(row,))
    with replaced((town.node(3).data.replica, "write", lambda _request, _answer: None)):
        done(town, town.begin(1, lambda node: node.data.coordinator.write(made, Consistency.QUORUM, 2000)))
        for number in NODES:
            write(town, number, 3, at_us + 1, deletion=Deletion(at_us + 1, now_s(town)))
        town.wait(1.1)
        repair(town)
        assert not town.node(1).data.hints.store.count()
        town.wait(5)
        assert town.node(1).data.hints.store.count()
    town.until(lambda: not town.node(1).data.hints.store.count())
    command = ReadCommand(
        made.table_id, made.token - 1, made.token, name, ALL_ROWS, (), False, False, 0, 0, 1
    )
    [found] = done(town, town.begin(3, lambda node: node.data.engine.read(command))).partitions
    assert found.deletion is not None and not found.rows


def bring_a_hint_late(town: Town, grace_s: int) -> None:
    """A write misses a replica, which hears of its deletion and purges that; then it would take the hint,
    which was left after the deletion was made."""
    grace = ChangeSchema(AlterOptions("ks", "t", (("gc_grace_seconds", str(grace_s)),)))
    done(town, town.submit(1, grace))
    at_us, name = town.node(1).runtime.clock.wall_us(), (3).to_bytes(4, "big")
    row = Row(b"\x00", Liveness(at_us), None, (Cell(2, b"v", at_us),))
    made = Mutation(table_id(town.newest), token_of(name), name, bytes(MUTATION_ID_BYTES), at_us, rows=(row,))
    with replaced((town.node(3).data.replica, "write", lambda _request, _answer: None)):
        done(town, town.begin(1, lambda node: node.data.coordinator.write(made, Consistency.QUORUM, 2000)))
        write(town, 3, 3, at_us + 1, deletion=Deletion(at_us + 1, now_s(town)))
        town.wait(grace_s - 20)
    with replaced((town.node(3).data.replica, "write", _refuses)):
        assert town.node(1).data.hints.store.count() == 1
        town.until(lambda: now_s(town, 3) > at_us // 1_000_000 + grace_s)
        purge = town.node(3).work.tombstone_purge
        done(town, town.begin(3, lambda node: node.data.engine.purge_table(made.table_id, purge.before)))
        assert not pairs(town, 3)
    town.until(lambda: not town.node(1).data.hints.store.count())


def _refuses(_request: object, _answer: object) -> None:
    raise Overloaded("not now")


def test_a_hint_is_given_up_before_what_deleted_its_write_may_go(town: Town) -> None:
    bring_a_hint_late(town, 200)
    assert not pairs(town, 3)
    assert town.node(1).data.hints.dropped[EXPIRED] == 1


def test_a_read_brings_no_tombstone_back_to_a_replica_that_has_purged_it(town: Town) -> None:
    """Else replicas that purge at different times would give it to each other for ever."""
    delete_everywhere(town)
    town.node(2).work.tombstone_purge._oldest_undelivered_us = lambda: 1
    town.until(lambda: not pairs(town, 1) and not pairs(town, 3))
    read_all(town)
    assert [pairs(town, number) >= 10 for number in NODES] == [False, True, False]
    # What was written since is repaired, and the tombstone with it.
    write(town, 2, 0, now_s(town) * 1_000_000)
    read_all(town)
    assert pairs(town, 1) + pairs(town, 3) >= 2


def read_all(town: Town) -> None:
    """At the level ALL, through the second node."""

    async def work(node: Node) -> None:
        table = table_id(town.newest)
        for key in range(10):
            name = key.to_bytes(4, "big")
            token = token_of(name)
            command = ReadCommand(
                table, token - 1, token, name, ALL_ROWS, (), False, False, 0, 0, now_s(town)
            )
            await node.data.coordinator.read(command, Consistency.ALL, 2000)

    done(town, town.begin(2, work))


def test_hints_of_a_node_that_left_bring_nothing_back_that_a_repair_let_go(town: Town) -> None:
    """A repair does not ask it any more, and the one who takes its hints was asked before."""
    set_mode(town, "repair")
    delete_everywhere(town)
    created_us = now_s(town) * 1_000_000
    town.wait(4)
    repair(town)
    town.until(lambda: not any(pairs(town, number) for number in NODES))
    key = (3).to_bytes(4, "big")
    row = Row(b"\x00", Liveness(1003), None, (Cell(2, b"1003", 1003),))
    late = Mutation(table_id(town.newest), token_of(key), key, bytes(MUTATION_ID_BYTES), 1003, rows=(row,))
    hint = Hint(created_us, town.newest.epoch, GRACE_S, late)

    async def hand_over(node: Node) -> None:
        heir = node.log.cluster.directory.by_id[NodeId(2)]
        body = HandedOver(((NodeId(3), hint),))
        await node.context.internode.request(
            (heir.address, heir.internode_port), verbs.HINTS_HANDOVER, body, 1000
        )

    done(town, town.begin(1, hand_over))
    town.until(lambda: town.node(2).data.hints.store.count() == 0)
    town.wait(1)
    assert not any(pairs(town, number) for number in NODES)
    assert town.node(2).data.hints.dropped[OUTLIVED] == 1
    assert {(mark.node, mark.reason) for mark in town.node(2).data.hints.store.marks()} == {(3, OUTLIVED)}


def keep_for_a_silent_replica(town: Town, at_us: int) -> Mutation:
    """A write that the third node misses, and of which the first keeps a hint."""
    name = (3).to_bytes(4, "big")
    row = Row(b"\x00", Liveness(at_us), None, (Cell(2, b"v", at_us),))
    made = Mutation(table_id(town.newest), token_of(name), name, bytes(MUTATION_ID_BYTES), at_us, rows=(row,))
    with replaced((town.node(3).data.replica, "write", lambda _request, _answer: None)):
        done(town, town.begin(1, lambda node: node.data.coordinator.write(made, Consistency.QUORUM, 2000)))
        town.until(lambda: town.node(1).data.hints.store.count() == 1)
    return made


def repair_while_a_clock_was_ahead() -> None:
    """The node that keeps a write for another has its clock an hour ahead; others delete what was written."""
    with purging_town() as town:
        set_mode(town, "repair")
        town.process(1).jump_wall(3600)
        with replaced((town.node(3).data.replica, "write", _refuses)):
            at_us = town.node(2).runtime.clock.wall_us()
            keep_for_a_silent_replica(town, at_us)
            for number in NODES:
                write(town, number, 3, at_us + 1, deletion=Deletion(at_us + 1, now_s(town, 2)))
            town.wait(10)
            repair(town, 2)
            town.wait(8)
            assert town.node(1).data.hints.store.count() == 1
            assert all(pairs(town, number) for number in NODES), "the deletion goes behind what it deletes"
        town.until(lambda: not town.node(1).data.hints.store.count())
        assert not any(shown(town, number) for number in NODES)


def shown(town: Town, number: int) -> list[Row]:
    """Live rows of the third partition on a node."""
    name = (3).to_bytes(4, "big")
    at = token_of(name)
    command = ReadCommand(
        table_id(town.newest), at - 1, at, name, ALL_ROWS, (), False, False, 0, 0, now_s(town, 2)
    )
    found = done(town, town.begin(number, lambda node: node.data.engine.read(command))).partitions
    return [row for part_ in found for row in part_.rows if row.liveness is not None]


def test_a_repair_knows_of_writes_kept_by_a_node_whose_clock_is_ahead() -> None:
    repair_while_a_clock_was_ahead()


def delete_once_the_clock_was_set_back() -> None:
    """Behind a repair: else the deletion would count as arrived wherever the repair was."""
    with purging_town() as town:
        set_mode(town, "repair")
        town.wait(5)
        repair(town)
        [recorded] = town.newest.repairs.by_table[table_id(town.newest)]
        town.process(1).jump_wall(-3600)
        node = town.node(1)

        async def asked(_node: Node) -> Context:
            now_us, stamp_us = node.runtime.clock.wall_us(), node.log.stamps.next_us()
            return Context(now_us, now_us // 1_000_000, stamp_us, stamp_us, b"", bytes)

        context = done(town, town.begin(1, asked))
        assert context.now_s < recorded.before_s <= context.deleted_at_s


def test_what_a_node_deletes_once_its_clock_was_set_back_goes_behind_a_repair() -> None:
    delete_once_the_clock_was_set_back()


def test_an_idle_node_tells_a_repair_the_time_that_its_clock_shows(town: Town) -> None:
    """Its reserved timestamps are behind that."""
    set_mode(town, "repair")
    town.wait(20)
    began_s = now_s(town)
    repair(town)
    [recorded] = town.newest.repairs.by_table[table_id(town.newest)]
    assert began_s - 4 <= recorded.before_s


def repair_by_a_driver_that_is_ahead() -> None:
    """What two replicas delete after it has not reached the third, whatever the driver's clock shows."""
    with purging_town() as town:
        set_mode(town, "repair")
        for number in NODES:
            write(town, number, 3, 1000)
        town.process(1).jump_wall(3600)
        repair(town)
        for number in NODES[1:]:
            write(town, number, 3, 2000, deletion=Deletion(2000, now_s(town, 2)))
        town.wait(GRACE_S)
        assert all(pairs(town, number) for number in NODES[1:])


def test_a_repair_whose_driver_is_ahead_covers_nothing_that_came_after_it() -> None:
    repair_by_a_driver_that_is_ahead()
