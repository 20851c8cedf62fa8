"""Who a replica of a base table brings view updates to."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lockstep.handoff.view_updates import paired_with
from lockstep.values.ids import NodeId

#: Twelve nodes in three data centres.
NODES = [NodeId(number) for number in range(12)]


def dc_of(node: NodeId) -> str:
    return f"dc{node % 3}"


@st.composite
def _groups(draw: st.DrawFn) -> tuple[list[NodeId], list[NodeId]]:
    """Two groups with as many replicas in each data centre, in any order."""
    base: list[NodeId] = []
    view: list[NodeId] = []
    for dc in range(3):
        nodes = [node for node in NODES if node % 3 == dc]
        count = draw(st.integers(0, 4))
        base += draw(st.permutations(nodes))[:count]
        view += draw(st.permutations(nodes))[:count]
    return draw(st.permutations(base)), draw(st.permutations(view))


@given(_groups())
def test_pairs_are_one_to_one_and_near(groups: tuple[list[NodeId], list[NodeId]]) -> None:
    base, view = groups
    pairs = {own: paired_with(base, view, dc_of, own) for own in base}
    assert sorted(pair for pair in pairs.values() if pair is not None) == sorted(view)
    for own, pair in pairs.items():
        assert pair is not None
        assert dc_of(own) == dc_of(pair)
        assert pair == own or own not in view


def test_there_is_no_pair_without_as_many_on_both_sides() -> None:
    base, view = [NodeId(0), NodeId(3), NodeId(1)], [NodeId(6), NodeId(1)]
    assert paired_with(base, view, dc_of, NodeId(0)) is None
    assert paired_with(base, view, dc_of, NodeId(1)) == 1
    assert paired_with(base, view, dc_of, NodeId(9)) is None
