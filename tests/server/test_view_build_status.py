"""What is told of builds of views at other nodes, by what is known of these."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lockstep.gossip.soft_state import SoftState
from lockstep.metadata.directory import NodeState
from lockstep.node.work.view_builds import Build
from lockstep.schema.model import Column, ColumnKind, Table, View
from lockstep.server.views.work_views import build_warning, status_rows
from tests.server.parts import as_services

COLUMNS = (Column(1, "k", "int", ColumnKind.PARTITION_KEY, 0),)
VIEW = Table(9, "u", "ks", "by_v", COLUMNS, epoch=20, view=View("t", "", True, ()))
SINCE = 12
HOST = "00000000-0000-4000-8000-00000000000{}"


class Others:
    """Node 1 has built the view; of node 2 is known what it `said`."""

    def __init__(self, said: SoftState | None, *, alive: bool = True, state: NodeState = NodeState.NORMAL):
        by_id = {
            at: SimpleNamespace(id=at, host_id=HOST.format(at), state=known)
            for at, known in ((1, NodeState.NORMAL), (2, state))
        }
        self.own_id = lambda: 1
        as_services(self)
        self.cluster: Any = SimpleNamespace(
            directory=SimpleNamespace(present_ids=(1, 2), by_id=by_id),
            schema=SimpleNamespace(tables_by_id={VIEW.id: VIEW}),
        )
        self.view_builds = SimpleNamespace(builds={VIEW.id: Build(True, (), 0, SINCE)}, lacking=list)
        self.gossip = SimpleNamespace(known=lambda _: said and SimpleNamespace(state=said))
        self.liveness = SimpleNamespace(alive=lambda _: alive)


def told(others: Any) -> tuple[str, bool]:
    _, other = status_rows(others)
    return other["status"], bool(build_warning(others, VIEW))


@pytest.mark.parametrize(
    ("said", "alive", "status"),
    [
        (SoftState(epoch=SINCE), True, "SUCCESS"),
        (SoftState(epoch=SINCE, building=(VIEW.id,)), True, "STARTED"),
        # It has not heard of the view, or nobody has heard of it.
        (SoftState(epoch=SINCE - 1), True, "STARTED"),
        (None, True, "STARTED"),
        # A dead node is as it was, however often the view was altered since.
        (SoftState(epoch=SINCE), False, "SUCCESS"),
        (SoftState(epoch=SINCE - 1), False, "STARTED"),
        (None, False, "UNKNOWN"),
    ],
)
def test_a_view_is_built_where_a_node_said_so_that_knew_of_it(
    said: SoftState | None, alive: bool, status: str
) -> None:
    assert told(Others(said, alive=alive)) == (status, status == "STARTED")


def test_nobody_waits_for_a_node_that_gets_the_view_with_its_ranges() -> None:
    for said in (None, SoftState(epoch=1)):
        assert told(Others(said, state=NodeState.BOOTSTRAPPING)) == ("SUCCESS", False)
