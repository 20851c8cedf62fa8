"""What a coordinator decides where something is frozen, taken back already, gone, or known to lack writes."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace

from lockstep.metadata.cdc import GENERATIONS, Generation
from lockstep.metadata.degraded import DEGRADED, Degraded
from lockstep.metadata.groups.service import SERVICE
from lockstep.metadata.operations import Stage
from lockstep.metadata.requests import Request
from lockstep.metadata.transformations import Initialize
from lockstep.metadata.transitions import Lone
from lockstep.topology.board import Board
from lockstep.topology.generations import RepairStreams
from lockstep.topology.kind import kind_of, stage_row
from lockstep.topology.kinds.decommission import Decommission
from lockstep.topology.repairs import is_unchanged
from lockstep.topology.requests import holder
from lockstep.topology.step import (
    Decision,
    Propose,
    Reports,
    RunWorkOrders,
    Wait,
    WorkReport,
    decide,
    step,
    work_key,
    work_orders,
)
from lockstep.topology.streams import shunned
from lockstep.topology.transformations import CancelOperation, PrepareOperation
from lockstep.values.errors import Rejected
from lockstep.values.ids import NodeId
from lockstep.values.limits import CDC_GENERATIONS_KEPT_MAX
from lockstep.values.tokens import Range
from tests.metadata.histories import History, SetKeyspaces, founder, network
from tests.topology.lone import World, moving
from tests.topology.tablets.test_recount import advance, ask, world
from tests.topology.tablets.worlds import begin, cluster, move, on_its_way, stage_of
from tests.topology.test_repairs import begin as begin_repair
from tests.topology.test_repairs import ring

ONE, TWO, THREE, FOUR = (NodeId(number) for number in (1, 2, 3, 4))


def everyone_at(history: History) -> dict[NodeId, int]:
    return dict.fromkeys(history.now.directory.present_ids, history.now.epoch)


# What moves by itself


def test_what_could_go_on_waits_while_the_metadata_is_frozen() -> None:
    history = cluster()
    begin(history, move(history))
    reports = Reports(acknowledged=everyone_at(history))
    wiped = Board().look(history.now, reports).orders
    reports = replace(reports, work={work_key(order): WorkReport.DONE for order in wiped})
    looked = Board().look(history.now, reports)
    assert looked.steps and isinstance(step(history.now, reports, looked), Propose)
    frozen = history.now.changed(SERVICE.set(replace(history.now.service, frozen="a backup")))
    decision = step(frozen, reports, Board().look(frozen, reports))
    assert isinstance(decision, Wait) and decision.epoch == frozen.epoch
    ((node, reason),) = decision.blockers
    assert node == 0 and "a backup" in reason


def test_streams_are_planned_again_when_a_source_is_known_to_lack_writes() -> None:
    history = cluster()
    wanted = move(history)
    begin(history, wanted)
    world_of = World(history, random.Random(3))
    while stage_of(history, wanted) is not Stage.STREAMING:
        assert world_of.round()
    reports, board = Reports(acknowledged=everyone_at(history)), Board()
    before = board.look(history.now, reports)
    one = on_its_way(history, wanted)
    assert one is not None
    line = Degraded(wanted.group, one.range, history.now.epoch, (wanted.source[0],))
    known = history.now.changed(DEGRADED.set((line,)))
    after = board.look(known, reports)
    (was,), (now,) = ([task for order in looked.orders for task in order.tasks] for looked in (before, after))
    assert was.sources == (wanted.source[0],) and len(now.sources) == 2
    assert wanted.source[0] not in now.sources
    assert after == Board().look(known, reports)
    assert board.look(history.now, reports) == before


def test_who_lacks_writes_is_no_source_where_others_are_enough() -> None:
    history = cluster()
    group = history.now.tablets.groups[0].id
    one = moving(group, Range(0, 10), ((ONE, TWO, THREE), (ONE, TWO, FOUR)), network(dc1=3), 1)

    def dc_of(_node: NodeId) -> str:
        return "dc1"

    assert shunned(Lone(one), one, (), dc_of) == ()
    assert shunned(Lone(one), one, (THREE,), dc_of) == (THREE,)
    assert shunned(Lone(one), one, (TWO, THREE), dc_of) == (), "one of three is too few: everyone is asked"


def test_a_kind_without_a_stage_has_no_row_of_it() -> None:
    history = cluster()
    wanted = move(history)
    begin(history, wanted)
    one = on_its_way(history, wanted)
    assert one is not None
    assert stage_row(Lone(one)).stage is Stage.ALLOW_WRITE_BOTH_READ_OLD
    assert stage_row(Lone(one), Stage.END_MIGRATION).stage is Stage.END_MIGRATION
    with pytest.raises(KeyError):
        stage_row(Lone(one), Stage.JOIN_GROUP0)


# Operations and requests


def test_work_that_fails_on_the_way_back_is_asked_for_again() -> None:
    history = world(network(dc1=1))
    ask(history, network(dc1=2))
    forward = failing(history, Stage.WRITE_BOTH_READ_OLD)
    assert isinstance(forward, Propose) and isinstance(forward.transformation, CancelOperation)
    history = world(network(dc1=3))
    ask(history, network(dc1=1))
    while history.now.operations[0].stage is not Stage.NEW_ONLY:
        advance(history)
    history.submit(CancelOperation(history.now.operations[0].id, "no"))
    again = failing(history, Stage.WRITE_BOTH_READ_OLD)
    operation = history.now.operations[0]
    assert kind_of(operation).is_taken_back(operation) and stage_row(operation).on_failure is not None
    assert isinstance(again, RunWorkOrders) and again.orders == work_orders(operation, history.now, ())


def failing(history: History, stage: Stage) -> Decision:
    """What is decided where all work of the next stage of this name that has any fails."""
    while True:
        operation = history.now.operations[0]
        orders = work_orders(operation, history.now, ())
        if operation.stage is stage and orders:
            work = {work_key(order): WorkReport.FAILED for order in orders}
            return decide(operation, history.now, Reports(acknowledged=everyone_at(history), work=work))
        advance(history)


def test_a_range_of_another_data_centre_alone_holds_no_request_up() -> None:
    history = History()
    places = ((100, "dc1"), (200, "dc1"), (300, "dc1"), (50, "dc2"), (400, "dc2"))
    founders = tuple(founder(n, (token,), dc) for n, (token, dc) in enumerate(places, 1))
    history.submit(Initialize("c", "n", founders, voters=(NodeId(5),)))
    history.submit(SetKeyspaces((("one", network(dc1=2)), ("two", network(dc2=1)))))
    history.submit(PrepareOperation(Decommission(ONE)))
    held = {one.group for one in history.now.transitions.listed()}
    assert len(held) == 1, "ranges of the keyspace of dc1"
    assert holder(history.now, Request(1, Decommission(FOUR))) is None
    found = holder(history.now, Request(1, Decommission(THREE)))
    assert found is not None and found[0] == history.now.operations[0]


def test_what_a_repair_holds_is_not_unchanged_when_its_keyspace_is_another() -> None:
    history = ring()
    begin_repair(history)
    repair = history.now.repairs.running[-1]
    keyspace = history.now.schema.by_name["ks"]
    (part,) = repair.parts
    assert is_unchanged(history.now, repair, keyspace.epoch)
    assert not is_unchanged(history.now, repair, keyspace.epoch - 1), "its replication may have been another"
    for other in (replace(part, keyspace="gone"), replace(part, group=part.group + 50)):
        assert not is_unchanged(history.now, replace(repair, parts=(other,)), history.now.epoch)


# Streams of changes


def test_no_generation_is_made_where_as_many_as_are_kept_may_still_count() -> None:
    history = ring()
    at_ms = 1_767_268_800_000
    made = [
        Generation(at_ms + number, f"g{number}", 0, number + 1, b"\0" * 8, number + 1)
        for number in range(CDC_GENERATIONS_KEPT_MAX)
    ]

    def repaired(*generations: Generation) -> tuple[Generation, ...]:
        value = history.now.changed(GENERATIONS.set(generations))
        return RepairStreams(at_ms).apply(value, value.epoch + 1).generations

    *few, newest = repaired(*made[:-1])
    assert few == made[:-1] and newest.timestamp_ms > at_ms
    with pytest.raises(Rejected, match=f"{CDC_GENERATIONS_KEPT_MAX} generations of streams are kept"):
        repaired(*made)
