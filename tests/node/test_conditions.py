"""What a node reports of itself: begun and ended once, bounded, and known to every other node."""

from __future__ import annotations

from typing import Any

from lockstep.node.work.condition_watches import LEADERLESS_S, STUCK_S
from lockstep.node.work.conditions import Conditions
from lockstep.server.views.live_views import found_by
from lockstep.topology.health import level_of, verdict
from lockstep.topology.kinds.rebuild import Rebuild
from lockstep.topology.transformations import PrepareOperation
from lockstep.values.conditions import (
    CONDITION_DETAIL_BYTES_MAX,
    CONDITIONS_HELD_MAX,
    CONDITIONS_TOLD_MAX,
    Level,
    fits,
)
from lockstep.values.ids import NodeId
from tests.node.support import Town
from tests.node.test_full_disks import again, leave_free
from tests.node.test_requests_while_moving import founded


class Watch:
    now_us = 1_000_000

    def wall_us(self) -> int:
        return self.now_us

    def monotonic_s(self) -> float:
        return self.now_us / 1e6


def made() -> tuple[Conditions, Watch, list[tuple[str, dict[str, Any]]]]:
    clock, lines = Watch(), list[tuple[str, dict[str, Any]]]()
    return Conditions(clock, lambda event, **facts: lines.append((event, facts))), clock, lines


def test_a_condition_is_logged_when_it_begins_and_ends_and_keeps_when_it_began() -> None:
    conditions, clock, lines = made()
    for detail in ("1 byte", "1 byte", "2 bytes"):
        conditions.report("DISK_FULL", detail=detail)
        clock.now_us += 1_000_000
    (held,) = conditions.current()
    assert (held.code, held.since_us, held.detail) == ("DISK_FULL", 1_000_000, "2 bytes")
    for _ in range(2):
        conditions.clear("DISK_FULL")
    assert conditions.current() == ()
    assert [event for event, _ in lines] == ["node.condition_began", "node.condition_ended"]
    assert lines[1][1]["lasted_s"] == 3


def test_conditions_and_their_texts_are_bounded_and_the_worst_are_told() -> None:
    conditions, _, _ = made()
    for number in range(CONDITIONS_HELD_MAX + 5):
        conditions.report("DISK_FULL", f"disk {number}", "é" * 1000)
    assert conditions.refused == 5
    conditions.clear("DISK_FULL", "disk 0")
    conditions.report("METADATA_STOPPED", detail="an unknown kind")
    told = conditions.told()
    assert len(told) == CONDITIONS_TOLD_MAX and told[0].code == "METADATA_STOPPED"
    assert all(map(fits, told)) and len(told[1].detail.encode()) > CONDITION_DETAIL_BYTES_MAX - 4


def seen_from(town: Town, number: int) -> tuple[Level, str]:
    node = town.node(number)
    found = found_by(node.services)
    return level_of(found), verdict(found, node.context.own_id(), running=False)


def test_every_node_says_that_another_ones_disk_is_full_and_that_no_quorum_takes_writes() -> None:
    with founded(21) as town:
        again(town)
        assert seen_from(town, 1) == (Level.HEALTHY, "healthy: every range has all its replicas")
        leave_free(town, 2, 900_000)
        town.wait(3)
        for number, name in ((1, "node 2"), (2, "this node"), (3, "node 2")):
            level, said = seen_from(town, number)
            assert level is Level.DEGRADED, "nobody wrote anything since it is full"
            assert said.startswith(f"degraded: {name} refuses writes: its disk is full"), said
        leave_free(town, 3, 900_000)
        town.wait(3)
        level, said = seen_from(town, 1)
        assert level is Level.UNAVAILABLE and said.startswith("unavailable: no quorum takes writes"), said
        for number in (2, 3):
            leave_free(town, number, 5_000_000)
        town.wait(3)
        assert [seen_from(town, number)[0] for number in (1, 2, 3)] == [Level.HEALTHY] * 3


def test_an_operation_that_does_not_go_on_is_told_by_every_node_and_no_more_once_it_does() -> None:
    with founded(5) as town:
        town.process(3).crash()
        town.until(lambda: not town.node(1).membership.liveness.alive(3))
        entry = PrepareOperation(Rebuild(NodeId(3)))
        assert town.finish(town.submit(1, entry)).error is None
        town.wait(5)
        assert "OPERATION_STUCK" not in codes(town, 2), "it may be over in a moment"
        town.wait(STUCK_S + 5)
        for number in (1, 2):
            assert {"NODE_DOWN", "OPERATION_STUCK"} <= codes(town, number)
        town.start(3)
        town.until(lambda: town.ready(3) and not town.newest.operations, 60.0)
        town.wait(5)
        assert codes(town, 1) == codes(town, 2) == set()


def test_a_lost_leader_is_told_once_elections_should_be_over() -> None:
    with founded(5) as town:
        town.until(lambda: len(town.newest.voters) == 3 and town.newest.service.change is None, 60.0)
        for number in (2, 3):
            town.process(number).crash()
        town.wait(LEADERLESS_S + 10)
        held = {condition.code for condition in town.node(1).context.conditions.current()}
        assert "METADATA_NO_LEADER" in held
        assert {"METADATA_NO_MAJORITY", "NO_QUORUM"} <= codes(town, 1), "which says more"


def codes(town: Town, number: int) -> set[str]:
    return {found.condition.code for found in found_by(town.node(number).services)}
