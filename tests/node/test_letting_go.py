"""When a coordinator lets a barrier go of quorums within data centres: as configured, counted and logged."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from lockstep.metadata.operations import Stage
from lockstep.node.configuration import parse
from lockstep.node.log.messages import EpochReply
from lockstep.node.membership.service_driver import ServiceDriver
from lockstep.node.work.topology_driver import TopologyDriver
from lockstep.topology.step import Reports
from lockstep.values.errors import ConfigurationError
from lockstep.values.ids import NodeId
from tests.topology.test_guards_and_relaxing import aware, two_centres

FOUNDER = '[cluster]\nfounders=["127.0.0.1"]\n'


class Driven:
    """A driver that is asked for one thing; `now_s` is its clock."""

    def __init__(self, relax_after_ms: int | None) -> None:
        self.now_s = 100.0
        self.said: list[tuple[str, dict[str, Any]]] = []
        clock = SimpleNamespace(monotonic_s=lambda: self.now_s)
        context = SimpleNamespace(
            runtime=SimpleNamespace(clock=clock),
            internode=None,
            own_id=lambda: 1,
            alive=lambda node: True,
            log=lambda event, **facts: self.said.append((event, facts)),
            configuration=SimpleNamespace(topology=SimpleNamespace(relax_after_ms=relax_after_ms)),
        )
        self.driver = TopologyDriver(
            context,  # type: ignore[arg-type]
            SimpleNamespace(listen=lambda listener: None),  # type: ignore[arg-type]
            None,  # type: ignore[arg-type]
            is_leader=lambda: True,
            heard_since=lambda node, wall_us: False,
            follows=lambda: "",
            stragglers=lambda: (),
        )


@pytest.mark.parametrize("relax_after_ms", [None, 5000])
def test_a_barrier_is_let_go_once_after_the_configured_time_and_never_without_one(
    relax_after_ms: int | None,
) -> None:
    async def test() -> None:
        history = two_centres(Stage.WRITE_BOTH_READ_NEW)
        operation = history.now.operations[0]
        seen = aware(history, *(NodeId(n) for n in (1, 2, 3, 4, 7)))
        lost = Reports(acknowledged=seen)
        driven = Driven(relax_after_ms)
        driver = driven.driver
        driver._relax(history.now, lost)
        driven.now_s += 4.9
        driver._relax(history.now, lost)
        assert driver.relaxed_count == 0 and driver._relaxed == ()
        driven.now_s += 0.2
        driver._relax(history.now, lost)
        if relax_after_ms is None:
            assert driver.relaxed_count == 0 and not driven.said
            return
        key = (operation.id, operation.stage_epoch)
        assert driver.relaxed_count == 1 and driver._relaxed == (key,)
        facts = {"operation": key[0], "epoch": key[1], "without": "5, 6"}
        assert driven.said == [("topology.barrier_relaxed", facts)]
        # From now on it passes, so it is not counted again.
        driver._relax(history.now, Reports(acknowledged=seen, relaxed=driver._relaxed))
        assert driver.relaxed_count == 1

    asyncio.run(test())


def test_the_time_begins_anew_when_something_else_was_missing_in_between() -> None:
    async def test() -> None:
        history = two_centres(Stage.WRITE_BOTH_READ_NEW)
        lost = Reports(acknowledged=aware(history, *(NodeId(n) for n in (1, 2, 3, 4, 7))))
        few = Reports(acknowledged=aware(history, NodeId(1), NodeId(7)))
        driven = Driven(5000)
        for reports in (lost, few, lost):
            driven.driver._relax(history.now, reports)
            driven.now_s += 3.0
        driven.driver._relax(history.now, lost)
        assert driven.driver.relaxed_count == 0

    asyncio.run(test())


@pytest.mark.parametrize("who", [0, 9])
def test_who_stands_at_a_nodes_address_has_seen_nothing_for_it(who: int) -> None:
    """Also when it has no id yet: the node itself may be alive elsewhere, and far behind."""

    async def test() -> None:
        history = two_centres(Stage.WRITE_BOTH_READ_NEW)
        driver = Driven(None).driver
        answering = [who]

        async def request(*_: object) -> EpochReply:
            return EpochReply(history.now.epoch, answering[0])

        driver._internode = SimpleNamespace(request=request)  # type: ignore[assignment]
        await driver._query(history.now, 5, history.now.epoch)
        assert driver.acknowledged(5) == 0 and not driver._guards
        answering[0] = 5
        await driver._query(history.now, 5, history.now.epoch)
        assert driver.acknowledged(5) == history.now.epoch

    asyncio.run(test())


def test_no_node_gets_a_vote_for_what_another_one_at_its_address_has_reached() -> None:
    async def test() -> None:
        history = two_centres(Stage.WRITE_BOTH_READ_NEW)
        epoch, answering = history.now.epoch, [9]

        async def request(*_: object) -> EpochReply:
            return EpochReply(epoch, answering[0])

        driver: Any = SimpleNamespace(
            _state=SimpleNamespace(current=history.now, epoch=epoch),
            _internode=SimpleNamespace(request=request),
            _reached={},
            _wake=asyncio.Event(),
        )
        await ServiceDriver._query(driver, NodeId(5), epoch)
        assert driver._reached == {}
        answering[0] = 5
        await ServiceDriver._query(driver, NodeId(5), epoch)
        assert driver._reached == {5: epoch}

    asyncio.run(test())


def test_barriers_let_nothing_go_unless_they_are_configured_to() -> None:
    assert parse(FOUNDER).topology.relax_after_ms is None
    set_ = parse(FOUNDER + '[topology]\nbarrier_minimum_level="quorum"\nbarrier_relax_after_ms=60000\n')
    assert set_.topology.relax_after_ms == 60_000
    for line in ('barrier_minimum_level="one"', "barrier_relax_after_ms=10"):
        with pytest.raises(ConfigurationError):
            parse(f"{FOUNDER}[topology]\n{line}\n")
