"""What is told of an operation's progress while its coordinators die: never less, and the same at the end."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from lockstep.metadata.directory import NodeState
from lockstep.metadata.operations import Stage
from lockstep.metadata.requests import Request, RequestState
from lockstep.node.work import moved
from lockstep.sim.checkers.telling import ToldProgress
from lockstep.sim.plant import replaced
from lockstep.sim.runtime.probes import DelayRule
from lockstep.sim.runtime.process import KILL, POWER
from lockstep.topology.requests import CancelRequest
from tests.node.support import Town, leave
from tests.node.test_failed_work import filled

LEAVER = 4
#: Between two looks at what the leader tells.
LOOK_S = 0.05
#: Leaders that die while data moves.
DEATHS = 3


class Told:
    """Who leads is asked again and again; what it tells is judged as a simulated run judges it."""

    def __init__(self, town: Town) -> None:
        self.town = town
        self.judge = ToldProgress()
        self.all: list[int] = []
        self.leaders: list[int] = []

    def look(self) -> int | None:
        """What the leader tells of the request; None while nobody leads."""
        leading = [
            (node.log.driver.raft.term, number)
            for number in range(1, 5)
            if self.town.ready(number)
            and (node := self.town.node(number)).log.is_leader
            and node.log.driver is not None
        ]
        if not leading:
            return None
        _, leader = max(leading)
        node = self.town.node(leader)
        requests = node.log.cluster.requests
        request = max((*requests.live, *requests.ended), key=lambda one: one.id)
        told = node.work.topology.moved.told(request)
        self.judge.told(f"n{leader}", request.id, told.bytes)
        self.all.append(told.bytes)
        self.leaders.append(leader)
        return told.bytes

    def grows(self) -> bool:
        """More was told than before."""
        before = max(self.all, default=0)
        told = self.look()
        return told is not None and told > before

    def until(self, done: Any, limit_s: float = 60.0) -> None:
        """Wait, and look all the time."""
        for _ in range(int(limit_s / LOOK_S)):
            if done():
                return
            self.look()
            self.town.wait(LOOK_S)
        raise AssertionError(f"not within {limit_s} s")


def counted_at_once() -> contextlib.AbstractContextManager[None]:
    """However little was moved is counted: these nodes hold a few KiB."""
    return replaced((moved, "COUNTED_BYTES_MIN", 1))


def four(town: Town) -> None:
    # Files of a few rows, each of which takes its time.
    town.extra_lines = {f"n{LEAVER}": "[streaming]\nthroughput_bytes_s=4000\nfile_bytes=1024\n"}
    filled(town)
    town.start(LEAVER)
    town.until(lambda: town.ready(LEAVER) and not town.newest.operations)
    town.until(lambda: town.voters_settled and town.management_settled)


def leader_dies(told: Told, kind: str) -> None:
    town = told.town
    leader = told.leaders[-1]
    town.process(leader).crash(kind)
    told.until(lambda: any(town.ready(n) and town.node(n).log.is_leader for n in (1, 2, 3) if n != leader))
    town.start(leader)
    told.until(lambda: town.ready(leader))


def outlive_leaders(kind: str = KILL) -> Told:
    """A decommission of which the leader dies again and again: what was told, and the request that ended."""
    with Town() as town, counted_at_once():
        four(town)
        asked = town.finish(town.submit(1, leave(LEAVER)))
        assert asked.error is None, asked.error
        told = Told(town)
        streaming = [Stage.WRITE_BOTH_READ_OLD]
        told.until(lambda: [o.stage for o in town.newest.operations] == streaming)
        for _ in range(DEATHS):
            told.until(told.grows)
            assert [o.stage for o in town.newest.operations] == streaming, "it dies while data moves"
            leader_dies(told, kind)
        told.until(lambda: town.state_of(LEAVER) is NodeState.LEFT)
        town.agreed(1, 2, 3)
        (ended,) = town.newest.requests.ended[-1:]
        assert ended.state is RequestState.DONE
        told.judge.first_applied(town.newest)
        assert told.look() == ended.moved_bytes == max(told.all) > 0
        assert len(set(told.leaders)) > 1 and told.all == sorted(told.all)
        assert ended.moved_fragments > 0
        everybody = {node_told(town, number, ended) for number in (1, 2, 3)}
        assert everybody == {ended.moved_bytes}, "every node tells it, also one that does not lead"
        return told


def node_told(town: Town, number: int, request: Request) -> int:
    node = town.node(number)
    return node.work.topology.moved.told(request).bytes


@pytest.mark.parametrize("kind", [KILL, POWER])
def test_no_leader_tells_less_than_the_one_before_it(kind: str) -> None:
    outlive_leaders(kind)


def test_what_was_moved_in_vain_is_told_on_the_way_back_too() -> None:
    with Town() as town, counted_at_once():
        four(town)
        assert town.finish(town.submit(1, leave(LEAVER))).error is None
        told = Told(town)
        told.until(lambda: [o.stage for o in town.newest.operations] == [Stage.WRITE_BOTH_READ_OLD])
        told.until(told.grows)
        (request,) = town.newest.requests.live
        assert town.finish(town.submit(LEAVER, CancelRequest(request.id))).error is None
        town.world.probes.add(DelayRule(label="replica.drain", low_s=5.0, high_s=5.0))
        told.until(lambda: [o.stage for o in town.newest.operations] == [Stage.ROLLBACK_TO_NORMAL])
        before = max(told.all)
        leader_dies(told, KILL)
        told.until(lambda: not town.newest.operations)
        (ended,) = town.newest.requests.ended[-1:]
        assert ended.state is RequestState.CANCELLED
        assert told.all == sorted(told.all) and before > 0
