"""Which ranges of tablets a node has nothing to do with, so that what it stores of them is dropped."""

from __future__ import annotations

import itertools

from lockstep.node.work.unowned_tablets import unowned
from lockstep.values.ids import NodeId
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN, Range
from tests.metadata.histories import History
from tests.topology.tablets.worlds import begin, cluster, map_of, move


def ranges(history: History, node: int) -> list[Range]:
    return [range_ for _, range_ in unowned(history.now, NodeId(node))]


def test_what_a_node_holds_and_what_it_does_not_is_everything() -> None:
    history = cluster(tablets=16)
    for node in history.now.directory.present_ids:
        held = [tablet.range for tablet in map_of(history).tablets() if node in tablet.nodes]
        both = sorted([*held, *ranges(history, node)])
        assert both[0].left == TOKEN_MIN and both[-1].right == TOKEN_MAX
        assert all(one.right == two.left for one, two in itertools.pairwise(both))
        kept = ranges(history, node)
        assert all(one.right < two.left for one, two in itertools.pairwise(kept)), "joined"
    tables = {tables for tables, _ in unowned(history.now, NodeId(1))}
    assert tables == {tuple(table.id for table in history.now.schema.tables_in(map_of(history).id))}


def test_a_tablet_on_its_way_is_of_both_nodes() -> None:
    history = cluster(tablets=4)
    wanted = move(history)
    source, target = wanted.source[0], wanted.target[0]
    tablet = map_of(history).ending(wanted.right)
    assert tablet is not None
    assert any(one.intersects(tablet.range) for one in ranges(history, target))
    begin(history, wanted)
    for node in (source, target):
        assert not any(one.intersects(tablet.range) for one in ranges(history, node))
