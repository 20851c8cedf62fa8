"""Requests are found while the node that is asked and the leader differ by an entry."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from lockstep.metadata.operations import Operation, OperationKind, Stage
from lockstep.metadata.service import NO_SERVICE
from lockstep.server.requests import Requests
from lockstep.values.errors import ConfigurationError
from lockstep.values.ids import NodeId


class Asked(Requests):
    """A node whose leader says which requests run."""

    def __init__(self, own: tuple[Operation, ...], leader: list[dict[str, Any]]) -> None:
        super().__init__(
            SimpleNamespace(
                cluster=SimpleNamespace(operations=own, service=NO_SERVICE, next_operation_id=1),
                state=SimpleNamespace(first_epoch=1, epoch=0, retained=lambda first, last: ()),
                topology=SimpleNamespace(blocking=(), progress={}),
                runtime=SimpleNamespace(clock=SimpleNamespace(wall_us=lambda: 0)),
                is_leader=False,
            )  # type: ignore[arg-type]
        )
        self._leader = leader

    async def running(self) -> list[dict[str, Any]]:
        return self._leader


def operation(number: int) -> Operation:
    return Operation(
        id=number,
        kind=OperationKind.DECOMMISSION,
        node=NodeId(4),
        stage=next(iter(Stage)),
        stage_epoch=7,
        session_id="",
        transitions=(),
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
    assert [document["state"] for document in listed] == ["cancelling"]


def test_a_request_that_nobody_knows_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="no request 3"):
        found(Asked((operation(2),), []), 3)
