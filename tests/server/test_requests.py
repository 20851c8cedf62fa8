"""Requests are found while the node that is asked and the leader differ by an entry."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from lockstep.metadata.directory import Directory
from lockstep.metadata.operations import Operation, Stage
from lockstep.metadata.requests import Request, RequestState
from lockstep.metadata.requests import Requests as Known
from lockstep.metadata.transitions import NO_TRANSITIONS
from lockstep.node.work.moved import Moved
from lockstep.server.admin.requests import Requests
from lockstep.topology.kinds.decommission import Decommission
from lockstep.values.errors import ConfigurationError
from lockstep.values.ids import NodeId
from tests.server.parts import as_services


def requests_of(operations: tuple[Operation, ...]) -> Known:
    """A running request for each operation, of the same number, and one that was cancelled."""
    live = tuple(
        Request(one.id, one.body, state=RequestState.RUNNING, operation_id=one.id) for one in operations
    )
    ended = Request(1, Decommission(NodeId(9)), state=RequestState.CANCELLED, outcome="no")
    return Known(live, (ended,), 10)


class Asked(Requests):
    """A node whose leader says which requests run."""

    def __init__(self, own: tuple[Operation, ...], leader: list[dict[str, Any]]) -> None:
        super().__init__(
            as_services(
                SimpleNamespace(
                    cluster=SimpleNamespace(
                        operations_by_id={operation.id: operation for operation in own},
                        requests=requests_of(own),
                        directory=Directory(),
                        excluded=(),
                        excluded_by_node={},
                        degraded=(),
                        transitions=NO_TRANSITIONS,
                        epoch=7,
                    ),
                    topology=SimpleNamespace(blocking=(), progress={}, said={}, moved=Moved()),
                    own_id=lambda: 1,
                    runtime=SimpleNamespace(clock=SimpleNamespace(wall_us=lambda: 0)),
                    is_leader=False,
                )
            )
        )
        self._leader = leader

    async def _leaders(self) -> dict[str, Any]:
        return {"requests": self._leader, "moved": {}}


def operation(number: int) -> Operation:
    return Operation(
        id=number,
        body=Decommission(NodeId(4)),
        stage=Stage.PREPARED,
        stage_epoch=7,
        session_id="",
        tokens=(),
    )


def found(asked: Asked, number: int) -> str:
    return str(asyncio.run(asked.one(str(number)))["state"])


def test_a_request_that_ended_at_the_leader_only_still_runs_here() -> None:
    assert found(Asked((operation(2),), []), 2) == "running"


def test_a_request_that_only_the_leader_knows_is_told() -> None:
    assert found(Asked((), [{"id": "2", "state": "running"}]), 2) == "running"


def test_a_request_that_both_know_is_listed_once_as_the_leader_sees_it() -> None:
    asked = Asked((operation(2),), [{"id": "2", "state": "cancelling"}])
    listed = asyncio.run(asked.all())["requests"]
    assert [document["state"] for document in listed] == ["cancelling", "cancelled"]


def test_an_ended_request_is_told_from_the_metadata() -> None:
    asked = Asked((), [{"id": "1", "state": "running"}])
    told = asyncio.run(asked.one("1"))
    assert (told["state"], told["reason"], told["began_epoch"]) == ("cancelled", "no", None)


def test_a_request_that_nobody_knows_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="no request 3"):
        found(Asked((operation(2),), []), 3)
