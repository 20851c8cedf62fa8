"""Conditions that are looked at: each begins with its cause, or once that has lasted, and ends with it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from lockstep.metadata.directory import NodeState
from lockstep.metadata.schema_change import ChangeSchema
from lockstep.node.membership.service_driver import Blocked
from lockstep.node.work.condition_watches import STUCK_S, watch_groups
from lockstep.node.work.conditions import Conditions
from lockstep.node.work.lacking import of_sole_replica
from lockstep.schema.changes import CreateTable, NewColumn
from lockstep.schema.model import ColumnKind
from lockstep.storage.store_position import FIRST_KEY, LAST_KEY, Lack
from lockstep.topology.health import Level
from lockstep.values.errors import FrameCorrupt, RangeLacking
from lockstep.values.ids import NodeId
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN, Range
from tests.node.support import Town, keyspace, leave
from tests.node.test_conditions import codes, made, seen_from
from tests.node.test_requests_while_moving import founded

STUCK_US = int(STUCK_S * 1e6)
SILENT = Blocked(5, "it does not answer", 0)
#: Seconds that pass, whom the voters wait for then, and whether that is told.
VOTERS = [
    ([(0, SILENT, False), (STUCK_S - 1, SILENT, False), (1, SILENT, True)], "it has lasted"),
    ([(0, SILENT, False), (STUCK_S + 1, SILENT, True), (1, None, False)], "it goes on again"),
    (
        [(0, SILENT, False), (STUCK_S - 1, None, False), (1, SILENT, False), (STUCK_S - 1, SILENT, False)],
        "they went on between",
    ),
    (
        [(0, SILENT, False), (STUCK_S, Blocked(4, SILENT.reason, 0), False), (1, SILENT, False)],
        "another node is waited for",
    ),
]


class Groups:
    """What the watch of both groups looks at; `look` does."""

    def __init__(self) -> None:
        self.conditions, self.clock, _ = made()
        self.group = SimpleNamespace(broken=None)
        self.management = SimpleNamespace(group=None)
        self.service = SimpleNamespace(blocked=None)
        topology = SimpleNamespace(blocking=(), said={})
        look = watch_groups(
            cast(Conditions, self.conditions),
            cast(Any, self.management),
            cast(Any, topology),
            cast(Any, self.service),
            cast(Any, self.clock),
        )
        self.conditions.watch(look)

    def told(self) -> dict[str, str]:
        return {one.code: one.detail for one in self.conditions.current()}


@pytest.mark.parametrize(("steps", "why"), VOTERS, ids=[why for _, why in VOTERS])
def test_voters_are_stuck_once_they_have_waited_long_for_one_thing(
    steps: list[tuple[float, Blocked | None, bool]], why: str
) -> None:
    groups = Groups()
    for seconds, blocked, is_told in steps:
        groups.clock.now_us += int(seconds * 1e6)
        groups.service.blocked = blocked
        assert ("VOTERS_STUCK" in groups.told()) is is_told, (why, seconds)


@pytest.mark.parametrize(
    ("blocked", "detail"),
    [(SILENT, "node 5: it does not answer"), (Blocked(0, "no majority", 0), "no majority")],
)
def test_the_voters_wait_for_a_node_or_for_the_group(blocked: Blocked, detail: str) -> None:
    groups = Groups()
    groups.service.blocked = blocked
    groups.told()
    groups.clock.now_us += STUCK_US
    assert groups.told() == {"VOTERS_STUCK": detail}


def test_a_member_of_the_management_group_that_broke_is_told_at_once() -> None:
    groups = Groups()
    assert groups.told() == {}, "this node is no member"
    groups.management.group = groups.group
    assert groups.told() == {}
    groups.group.broken = FrameCorrupt("entry 7 has another digest")
    assert groups.told() == {"MANAGEMENT_STOPPED": "entry 7 has another digest"}
    groups.management.group = None
    assert groups.told() == {}, "it left the group"


def test_every_node_says_that_a_vote_finds_no_taker_until_the_dead_node_is_back() -> None:
    with Town(founders=4) as town:
        town.found()
        spare = next(n for n in (1, 2, 3, 4) if n not in town.newest.voters)
        leaver = town.newest.voters[0]
        town.process(spare).crash()
        town.until(lambda: not town.node(town.leader()).membership.liveness.alive(spare))
        assert town.finish(town.submit(leaver, leave(leaver))).error is None
        # The dead node is tried first, and given up.
        town.until(lambda: blocker(town) == leaver)
        town.wait(STUCK_S - 5)
        others = [n for n in (1, 2, 3, 4) if n != spare]
        assert not any("VOTERS_STUCK" in codes(town, number) for number in others)
        town.wait(10)
        for number in others:
            assert "VOTERS_STUCK" in codes(town, number)
            assert seen_from(town, number)[0] is Level.DEGRADED
        town.start(spare)
        town.until(lambda: town.ready(spare) and town.state_of(leaver) is NodeState.LEFT)
        town.wait(5)
        stays = next(n for n in others if n != leaver)
        assert "VOTERS_STUCK" not in codes(town, stays)


def blocker(town: Town) -> int:
    """Whom the voters wait for; 0: nobody."""
    blocked = town.node(town.leader()).work.service.blocked
    return blocked.node if blocked is not None else 0


def test_what_only_a_node_that_lost_its_store_had_is_lost_and_stays_so_over_a_restart() -> None:
    with founded(7) as town:
        assert town.finish(town.submit(1, keyspace("once", 1))).error is None
        columns = (NewColumn("p", "int", ColumnKind.PARTITION_KEY, 0), NewColumn("v", "int"))
        made_once = CreateTable("once", "t", "00000000-0000-4000-8000-00000000000f", columns)
        assert town.finish(town.submit(1, ChangeSchema(made_once))).error is None
        town.agreed(1, 2, 3)
        everything = Lack(FIRST_KEY, LAST_KEY, "store")
        cluster, own = town.node(2).log.cluster, NodeId(2)
        tables = {keyspace.name: {one.id for one in keyspace.tables} for keyspace in cluster.schema.keyspaces}
        sole = tuple(of_sole_replica((everything,), cluster, own))
        assert sole and all(lack.sole for lack in sole), "what has other replicas is not among them"
        given_up = Lack(FIRST_KEY, LAST_KEY, "store", given_up=True)
        assert not tuple(of_sole_replica((given_up,), cluster, own))
        filling = town.begin(2, lambda node: node.data.lacking.filled((everything,), sole))
        assert town.finish(filling).error is None
        for _ in range(2):
            town.wait(3)
            for number in (1, 2, 3):
                assert "RANGE_LOST" in codes(town, number)
                assert seen_from(town, number)[0] is Level.UNAVAILABLE
            (of_once,) = tables["once"]
            whole = Range(TOKEN_MIN, TOKEN_MAX)
            with pytest.raises(RangeLacking):
                town.node(2).data.lacking.require(of_once, whole)
            for other in set().union(*(ids for name, ids in tables.items() if name != "once")):
                town.node(2).data.lacking.require(other, whole)
            town.process(2).crash()
            town.start(2)
            town.until(lambda: town.ready(2))
