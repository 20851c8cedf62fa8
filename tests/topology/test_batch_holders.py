"""Who keeps a logged batch while its coordinator writes it."""

from __future__ import annotations

from lockstep.metadata.transformations import Initialize
from lockstep.topology.batch_holders import batch_holders
from lockstep.topology.kinds.decommission import Decommission
from lockstep.topology.transformations import PrepareOperation
from lockstep.values.ids import NodeId
from tests.metadata.histories import History, founder

#: Nodes 1 to 5 in dc1 on three racks, 6 in dc2.
RACKS = ("r1", "r1", "r2", "r2", "r3")


def six() -> History:
    history = History()
    nodes = [founder(at + 1, (100 * (at + 1),), "dc1", rack) for at, rack in enumerate(RACKS)]
    nodes.append(founder(6, (600,), "dc2", "r1"))
    history.submit(Initialize("c", "n", tuple(nodes), voters=(NodeId(1),)))
    return history


def chosen(history: History, own: int, dead: tuple[int, ...] = (), turn: int = 0) -> list[int]:
    return [
        int(node) for node in batch_holders(history.now, NodeId(own), lambda node: node not in dead, turn)
    ]


def test_other_racks_come_first_and_one_of_each_before_a_second() -> None:
    assert chosen(six(), 1) == [3, 5, 4, 2]


def test_the_turn_varies_who_is_first() -> None:
    assert {tuple(chosen(six(), 1, turn=turn)[:2]) for turn in range(4)} == {(3, 5), (4, 5), (5, 3)}


def test_the_dead_and_those_that_leave_are_left_out() -> None:
    history = six()
    assert chosen(history, 1, dead=(3, 5)) == [4, 2]
    history.submit(PrepareOperation(Decommission(NodeId(4))))
    assert chosen(history, 1, dead=(3, 5)) == [2]


def test_nobody_else_alive_is_not_the_same_as_nobody_else() -> None:
    history = six()
    assert chosen(history, 1, dead=(2, 3, 4, 5)) == [], "others should keep it, and none can"
    assert chosen(history, 6) == [6], "alone in its data centre it keeps its batches itself"
