"""Who a replica of a base table brings view updates to."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.handoff import view_updates
from lockstep.handoff.view_log import ViewLog
from lockstep.handoff.view_updates import ViewPairs, paired_with
from lockstep.quorum.plans import PlanBook
from lockstep.values.ids import NodeId
from lockstep.values.rows import Cell, Liveness, Mutation, Row
from lockstep.values.tokens import TOKEN_MAX

from .clusters import TABLE_ID, make_cluster, whole_ring

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


def mutation(number: int) -> Mutation:
    return Mutation(TABLE_ID, 7, b"k", b"%016d" % number, 1)


def test_who_is_no_replica_of_the_base_has_no_pair() -> None:
    book = PlanBook(lambda: whole_ring(5, [1, 2, 3]), lambda: 1)
    pair = ViewPairs(book, lambda: 1).plan(mutation(1), mutation(2), 5)
    assert pair is not None and [target.node for target in pair.targets] == [1]
    assert ViewPairs(book, lambda: 9).plan(mutation(1), mutation(2), 5) is None


def test_while_a_replica_comes_updates_go_to_all() -> None:
    moving = make_cluster(5, [(TOKEN_MAX, [1, 2, 3], [1, 2, 3, 4], 5)])
    book = PlanBook(lambda: moving, lambda: 1)
    assert ViewPairs(book, lambda: 1).plan(mutation(1), mutation(2), 5) is None


def test_a_row_that_is_too_large_for_one_mutation_comes_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view_updates, "VIEW_MUTATION_BYTES", 200)
    cells = tuple(Cell(column, bytes(90), 5) for column in range(5))
    row = Row(b"c", Liveness(5), None, cells)
    pieces = [piece for _, piece in view_updates._parts(b"k", row)]
    assert len(pieces) > 2 and tuple(cell for piece in pieces for cell in piece.cells) == cells
    assert [piece.liveness for piece in pieces] == [Liveness(5), *[None] * (len(pieces) - 1)]
    assert list(view_updates._parts(b"k", Row(b"c", Liveness(5)))) == [(b"k", Row(b"c", Liveness(5)))]


@pytest.mark.parametrize("whole", [True, False])
def test_updates_are_done_when_each_is_on_all_replicas_or_durably_owed(whole: bool) -> None:
    synced: list[int] = []

    async def note(sequence: int) -> None:
        synced.append(sequence)

    async def test() -> bool:
        log: Any = SimpleNamespace(_hints=SimpleNamespace(store=SimpleNamespace(synced=note)))
        ends = [asyncio.get_running_loop().create_future() for _ in range(3)]
        for at, end in enumerate(ends):
            end.set_result((whole or at != 1, at))
        return await ViewLog.done(log, ends)

    assert asyncio.run(test()) is whole
    assert synced == ([0, 1, 2] if whole else [0])
