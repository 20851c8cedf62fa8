"""A cluster with one table of tablets, and what moves them."""

from __future__ import annotations

from lockstep.metadata.features import EXCLUDED_KINDS, ExcludeNodes
from lockstep.metadata.operations import Stage
from lockstep.metadata.schema_change import ChangeSchema
from lockstep.metadata.transformations import Initialize
from lockstep.metadata.transitions import Lone, Transition
from lockstep.placement.tablets.map import Tablet, TabletMap
from lockstep.schema.changes import CreateKeyspace, CreateTable, NewColumn, SchemaChange
from lockstep.schema.model import ColumnKind
from lockstep.topology.tablets.moves import BeginMoves, TabletMove
from lockstep.values.ids import NodeId
from tests.metadata.histories import History, founder

assert EXCLUDED_KINDS
TABLE = CreateTable(
    "k",
    "t",
    "00000000-0000-0000-0000-000000000001",
    (NewColumn("a", "int", ColumnKind.PARTITION_KEY, 0), NewColumn("b", "int")),
)


def cluster(
    racks: tuple[str, ...] = ("r1",) * 5, factor: int = 3, tablets: int = 4, dc: str = "dc1"
) -> History:
    """Founders in these racks; the last one is in `dc`."""
    history = History()
    founders = [
        founder(n, (n * 10,), dc if n == len(racks) else "dc1", rack) for n, rack in enumerate(racks, 1)
    ]
    history.submit(Initialize("c", "n", tuple(founders)))
    replication = (("class", "NetworkTopologyStrategy"), ("dc1", str(factor)))
    change(history, CreateKeyspace("k", replication, tablets=(("initial", str(tablets)),)), TABLE)
    return history


def change(history: History, *changes: SchemaChange) -> None:
    for one in changes:
        before = history.now
        history.submit(ChangeSchema(one))
        history.now.validate(before)


def exclude(history: History, *nodes: NodeId) -> None:
    history.submit(ExcludeNodes(nodes, "broken"))


def map_of(history: History) -> TabletMap:
    (group,) = (one for one in history.now.tablets.groups if one.head.table == "t")
    return group.map(history.now.placements)


def spare(history: History, tablet: Tablet) -> NodeId:
    return next(n for n in history.now.directory.present_ids if n not in tablet.nodes)


def move(history: History, number: int = 0, kind: str = "migration", at: int = -1) -> TabletMove:
    """One of a replica to a node that has none."""
    made = map_of(history)
    tablet = list(made.tablets())[number]
    return TabletMove(made.id, tablet.right, kind, tablet.replicas[at], (spare(history, tablet), 0))


def begin(history: History, *moves: TabletMove) -> None:
    before = history.now
    history.submit(BeginMoves(0, moves))
    history.now.validate(before)


def on_its_way(history: History, wanted: TabletMove) -> Transition | None:
    return history.now.transitions.at(wanted.group, wanted.right)


def stage_of(history: History, wanted: TabletMove) -> Stage | None:
    one = on_its_way(history, wanted)
    return Lone(one).stage if one is not None else None
