"""What else keeps tablets where they are, or their number as it is, and what is not in the way."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.directory import DIRECTORY, NodeInfo, NodeState
from lockstep.metadata.groups.service import SERVICE
from lockstep.metadata.log.registry import Transformation
from lockstep.metadata.operations import Stage
from lockstep.metadata.repairs import RepairPart
from lockstep.metadata.schema_change import ChangeSchema
from lockstep.metadata.schema_part import PLACEMENTS
from lockstep.metadata.tablets import TABLETS, Tablets
from lockstep.metadata.transformations import Initialize
from lockstep.metadata.transitions import TRANSITIONS
from lockstep.placement.placements import PlacedRange, RingPlacement, ring_of_ranges
from lockstep.placement.tablets.load import LoadStatistics
from lockstep.placement.tablets.map import TabletMap
from lockstep.placement.tablets.resize import DECISIONS_MAX, Resize, ResizeKind
from lockstep.placement.tablets.shards import NO_SHARDS, shards_of
from lockstep.schema.changes import AlterKeyspace, CreateKeyspace, CreateTable, DropTable, EmptyTable
from lockstep.topology.kinds.decommission import Decommission
from lockstep.topology.kinds.move import Move
from lockstep.topology.repairs import BeginRepair
from lockstep.topology.requests import EnqueueRequest
from lockstep.topology.tablets import resizes
from lockstep.topology.tablets.asked import AskResize, count_after
from lockstep.topology.tablets.balancing import held_tablets_of, hosts_of, running_moves
from lockstep.topology.tablets.moves import BeginMoves, TabletMove
from lockstep.topology.tablets.recount import (
    PAUSED,
    detour,
    prove_counts,
    refuse_moving,
    without_stray_shards,
)
from lockstep.topology.tablets.resizes import (
    DecideResizes,
    ResizeChange,
    held_by_repair,
    refuse_decision,
    unsound,
)
from lockstep.topology.tablets.stages import goes_back
from lockstep.topology.transformations import PrepareOperation
from lockstep.values import node_limits
from lockstep.values.errors import Rejected
from lockstep.values.ids import NodeId
from lockstep.values.tokens import FULL_RING, TOKEN_MAX, TOKEN_MIN, Range
from tests.metadata.histories import History, founder, network
from tests.topology.tablets.test_rack_lists import replication as listed
from tests.topology.tablets.test_rack_lists import world as in_racks
from tests.topology.tablets.test_recount import OTHER, options
from tests.topology.tablets.worlds import TABLE, begin, change, cluster, map_of, move, on_its_way

SPLIT, MERGE, NONE = ResizeKind.SPLIT, ResizeKind.MERGE, ResizeKind.NONE
BESIDE = (
    CreateKeyspace("k2", options(network(dc1=3)), tablets=(("initial", "2"),)),
    replace(OTHER, keyspace="k2"),
)


def refused(value: ClusterMetadata, entry: Transformation) -> str:
    with pytest.raises(Rejected) as caught:
        entry.apply(value, value.epoch + 1)
    return caught.value.message


def frozen(history: History) -> ClusterMetadata:
    return history.now.changed(SERVICE.set(replace(history.now.service, frozen="maintenance")))


def known_as(history: History, node: NodeId, **facts: object) -> ClusterMetadata:
    """The value with a node that is different."""
    known = history.now.directory.by_id[node]
    changed: NodeInfo = replace(known, epoch=history.now.epoch, **facts)
    return history.now.changed(DIRECTORY.set(history.now.directory.with_node(changed)))


def repair(history: History, group: int, *ranges: Range, keyspace: str = "k") -> None:
    (table,) = (one for one in history.now.schema.by_name[keyspace].tables if one.group == group)
    history.submit(BeginRepair(NodeId(1), (RepairPart(keyspace, group, (table.id,), ranges),), 1))


# Moves


def test_nothing_moves_while_the_metadata_is_frozen() -> None:
    history = cluster()
    assert "frozen: maintenance" in refused(frozen(history), BeginMoves(0, (move(history),)))


def ask_to_leave(history: History, node: NodeId) -> ClusterMetadata:
    return history.submit(EnqueueRequest(Decommission(node)))


def give_other_tokens(history: History, node: NodeId) -> ClusterMetadata:
    return history.submit(PrepareOperation(Move(node, (node * 10 + 1,))))


def take_tokens(history: History, node: NodeId) -> ClusterMetadata:
    return known_as(history, node, tokens=(), num_tokens=0)


def test_no_replica_of_a_tablet_with_witnesses_goes_to_another_data_centre() -> None:
    """The first ones of each data centre keep the data."""
    for factor, is_refused in (("3/1", True), ("3", False)):
        history = History()
        founders = [founder(n, (n * 10,), "dc2" if n == 4 else "dc1") for n in range(1, 5)]
        history.submit(Initialize("c", "n", tuple(founders)))
        setting = (("class", "NetworkTopologyStrategy"), ("dc1", factor))
        spread = (("initial", "1"),)
        change(history, CreateKeyspace("k", setting, tablets=spread, replication_type="tracked"), TABLE)
        (tablet,) = map_of(history).tablets()
        for replica in tablet.replicas:
            wanted = TabletMove(map_of(history).id, tablet.right, "migration", replica, (NodeId(4), 0))
            entry = BeginMoves(0, (wanted,), force=True)
            if is_refused:
                assert "has witnesses" in refused(history.now, entry)
            else:
                entry.apply(history.now, history.now.epoch + 1)


@pytest.mark.parametrize(
    ("done", "message"),
    [
        (ask_to_leave, "is to leave: "),
        (give_other_tokens, "takes part in "),
        (take_tokens, "has no tokens, so it stores nothing"),
        (lambda history, node: known_as(history, node, state=NodeState.REBUILDING), "only a normal node"),
    ],
)
def test_who_gets_no_tablet(done: Callable[[History, NodeId], ClusterMetadata], message: str) -> None:
    history = cluster(factor=1)
    wanted = move(history)
    others = (
        one for one in history.now.directory.present_ids if one not in (wanted.source[0], wanted.target[0])
    )
    node = wanted.target[0]
    value = done(history, node)
    told = refused(value, BeginMoves(0, (wanted,), force=True))
    assert told.startswith(f"node {node} ") and message in told
    BeginMoves(0, (replace(wanted, target=(next(others), 0)),)).apply(value, value.epoch + 1)


def test_another_rack_is_as_good_where_another_one_has_as_many() -> None:
    history = cluster(("r1", "r1", "r1", "r2", "r3"), factor=3)
    by_id = history.now.directory.by_id
    for tablet in map_of(history).tablets():
        racks = [by_id[node].rack for node in tablet.nodes]
        assert sorted(racks) == ["r1", "r2", "r3"]
    # Two of one rack, by force; then there is room for two in another one.
    (first, *_) = map_of(history).tablets()
    in_r2, spare = NodeId(4), next(node for node in (1, 2, 3) if node not in first.nodes)
    forced = TabletMove(map_of(history).id, first.right, "migration", (in_r2, 0), (NodeId(spare), 0))
    assert "would hold 2 replicas" in refused(history.now, BeginMoves(0, (forced,)))
    made = map_of(history)
    here = next(node for node in (1, 2, 3) if node in first.nodes)
    places = ((NodeId(here), 0), (NodeId(spare), 0), (NodeId(4), 0))
    ring = made.with_replicas({first.right: places}, history.now.epoch).ring
    value = with_ring(history.now, ring)
    gentle = TabletMove(made.id, first.right, "migration", (NodeId(spare), 0), (NodeId(5), 0))
    BeginMoves(0, (gentle,)).apply(value, value.epoch + 1)
    third = next(node for node in (1, 2, 3) if node not in (here, spare))
    within = replace(gentle, source=(NodeId(here), 0), target=(NodeId(third), 0))
    BeginMoves(0, (within,)).apply(value, value.epoch + 1)
    crowded = replace(gentle, source=(NodeId(4), 0), target=(NodeId(third), 0))
    assert "would hold 3 replicas" in refused(value, BeginMoves(0, (crowded,)))


def with_ring(value: ClusterMetadata, ring: RingPlacement) -> ClusterMetadata:
    return value.changed(PLACEMENTS.set(value.placements.with_rings((ring,))))


def test_what_an_operation_moves_has_no_way_back_of_its_own() -> None:
    history = cluster()
    wanted = move(history)
    begin(history, wanted)
    one = on_its_way(history, wanted)
    assert one is not None and one.position is not None and not goes_back(one)
    back = replace(one, position=replace(one.position, stage=Stage.CLEANUP_TARGET))
    assert goes_back(back)
    assert not goes_back(replace(back, position=None, operation_id=1))


# Splits and merges


def test_nothing_is_decided_while_the_metadata_is_frozen() -> None:
    history = cluster()
    entry = DecideResizes(history.now.epoch, (ResizeChange(map_of(history).id, Resize(SPLIT, 1)),))
    assert "frozen: maintenance" in refused(frozen(history), entry)


def test_only_so_many_tables_begin_at_once_and_taking_back_is_not_beginning() -> None:
    history = cluster(tablets=1)
    for number in range(DECISIONS_MAX):
        more = CreateTable("k", f"t{number}", f"00000000-0000-0000-0001-{number:012d}", TABLE.columns)
        change(history, more)
    groups = [group.id for group in history.now.tablets.groups]
    assert len(groups) == DECISIONS_MAX + 1

    def entry(kind: ResizeKind, sequence: int, some: list[int]) -> DecideResizes:
        return DecideResizes(
            history.now.epoch, tuple(ResizeChange(group, Resize(kind, sequence)) for group in some)
        )

    assert f"at most {DECISIONS_MAX} tables" in refused(history.now, entry(SPLIT, 1, groups))
    history.submit(entry(SPLIT, 1, groups[1:]))
    history.submit(entry(SPLIT, 1, groups[:1]))
    history.submit(entry(NONE, 2, groups))


@pytest.mark.parametrize(("most", "is_whole"), [(7, True), (4, False)])
def test_tablets_are_bounded(most: int, is_whole: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    history = cluster(tablets=4)
    (group,) = history.now.tablets.groups
    made = map_of(history)
    wanted = Resize(SPLIT, 1, () if is_whole else (made.ring.ranges[0].range.right,))
    monkeypatch.setattr(resizes, "TABLET_COUNT_MAX", most)
    with pytest.raises(Rejected, match=rf"k\.t would have more than {most} tablets"):
        refuse_decision(group, wanted, made)
    monkeypatch.setattr(resizes, "TABLET_COUNT_MAX", most + 1)
    refuse_decision(group, wanted, made)


def test_a_tablet_of_one_token_is_not_split() -> None:
    history = cluster(tablets=4)
    (group,) = history.now.tablets.groups
    (placed, *_) = map_of(history).ring.ranges
    parts = [Range(TOKEN_MIN, 6), Range(6, 7), Range(7, 9), Range(9, TOKEN_MAX)]
    ranges = tuple(PlacedRange(part, placed.group) for part in parts)
    made = TabletMap(ring_of_ranges(group.id, network(dc1=3), ranges), NO_SHARDS)
    with pytest.raises(Rejected, match="that ends at 7 has one token"):
        refuse_decision(group, Resize(SPLIT, 1, (7, 9)), made)
    refuse_decision(group, Resize(SPLIT, 1, (9,)), made)
    # A whole map is split where that goes.
    refuse_decision(group, Resize(SPLIT, 1), made)


def test_repairs_of_other_tables_and_of_other_tablets_are_not_in_the_way() -> None:
    history = cluster(tablets=4)
    change(history, *BESIDE)
    first, second, *_ = map_of(history).tablets()
    group_id = map_of(history).id
    history.submit(
        DecideResizes(history.now.epoch, (ResizeChange(group_id, Resize(SPLIT, 1, (first.right,))),))
    )

    def held() -> str | None:
        return held_by_repair(history.now, history.now.tablets.by_group[group_id], map_of(history))

    assert held() is None
    (other,) = (group.id for group in history.now.tablets.groups if group.head.keyspace == "k2")
    repair(history, other, FULL_RING, keyspace="k2")
    assert held() is None
    repair(history, group_id, second.range)
    assert held() is None
    repair(history, group_id, Range(first.right - 1, first.right))
    assert held() == "repair 3 (of k) holds its tablets"


def test_what_repairs_hold_is_not_moved_for_balance() -> None:
    history = cluster(tablets=4)
    change(history, *BESIDE)
    tablets = list(map_of(history).tablets())
    group_id = map_of(history).id
    assert held_tablets_of(history.now, {}) == {}
    repair(history, group_id, tablets[1].range, Range(tablets[3].right - 1, tablets[3].right))
    held = {(group_id, tablets[1].right): "repair 1 (of k)", (group_id, tablets[3].right): "repair 1 (of k)"}
    assert held_tablets_of(history.now, {}) == held
    change(
        history,
        CreateKeyspace("on_ring", options(network(dc1=3))),
        replace(TABLE, keyspace="on_ring", uuid="00000000-0000-0000-0000-000000000009"),
    )
    on_ring = history.now.schema.by_name["on_ring"]
    part = RepairPart("on_ring", on_ring.group, (on_ring.by_name["t"].id,), (FULL_RING,))
    history.submit(BeginRepair(NodeId(1), (part,), 1))
    assert held_tablets_of(history.now, {}) == held, "of the ring nothing is moved"


def test_of_a_node_that_has_left_tablets_are_built_anew_before() -> None:
    history = cluster(tablets=4)
    node = next(map_of(history).tablets()).nodes[0]
    assert unsound(history.now, map_of(history)) is None
    value = known_as(history, node, state=NodeState.LEFT, tokens=())
    assert unsound(value, map_of(history)) == f"node {node} has left, and its tablets are not built anew yet"
    kept = tuple(one for one in history.now.directory.nodes if one.id != node)
    value = history.now.changed(DIRECTORY.set(replace(history.now.directory, nodes=kept)))
    assert unsound(value, map_of(history)) == f"node {node} has left, and its tablets are not built anew yet"


def test_pairs_that_lie_together_are_merged_without_a_balancer() -> None:
    history = cluster(racks=("r1",) * 3, tablets=8)
    off = history.now.changed(TABLETS.set(Tablets(history.now.tablets.by_group, False)))
    made = map_of(history)
    entry = AskResize(made.id, MERGE, made.ring.ranges[0].range.right)
    assert "are asked for" in refused(off, entry), "options say how few"
    change(history, AlterKeyspace("k", tablets=(("initial", "4"),)))
    off = history.now.changed(TABLETS.set(Tablets(history.now.tablets.by_group, False)))
    decided = entry.apply(off, off.epoch + 1).tablets.by_group[made.id].head.resizing
    assert decided.resize == Resize(MERGE, 1, (made.ring.ranges[0].range.right,), by_hand=True)
    assert count_after(made, decided.resize) == 7


def test_nothing_decided_changes_no_number() -> None:
    history = cluster(tablets=4)
    made = map_of(history)
    assert count_after(made, Resize(NONE, 1)) == 4
    assert count_after(made, Resize(SPLIT, 1)) == 8 and count_after(made, Resize(MERGE, 1)) == 2


# What is asked of the planner


def test_nodes_without_tokens_are_no_hosts() -> None:
    history = cluster()
    value = known_as(history, NodeId(2), tokens=(), num_tokens=0)
    assert [host.node for host in hosts_of(history.now, ())] == [1, 2, 3, 4, 5]
    assert [host.node for host in hosts_of(value, ())] == [1, 3, 4, 5]


def test_a_tablet_that_changes_its_shard_is_held_and_no_move_between_nodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(node_limits, "SHARDS_PER_NODE", 2)
    history = cluster()
    made = map_of(history)
    first, second, *_ = made.tablets()
    inside = TabletMove(made.id, first.right, "intranode", first.replicas[0], (first.nodes[0], 1))
    begin(history, inside, move(history, 1))
    running = running_moves(history.now, LoadStatistics())
    assert list(running) == [(made.id, second.right)]
    held = held_tablets_of(history.now, running)
    assert list(held) == [(made.id, first.right)] and "intranode" in held[made.id, first.right]


# Changes of replication


def test_tablets_of_another_keyspace_may_move_when_a_step_begins() -> None:
    history = cluster()
    change(history, *BESIDE)
    spaces = history.now.schema.by_name
    refuse_moving(history.now, spaces["k2"])
    begin(history, move(history), move(history, 1))
    refuse_moving(history.now, spaces["k2"])
    with pytest.raises(Rejected, match=f"{PAUSED}2 tablets of keyspace k move, the first in "):
        refuse_moving(history.now, spaces["k"])


def test_more_replicas_than_a_data_centre_ever_had_nodes_are_never_safe() -> None:
    history = cluster(racks=("r1",) * 3)
    prove_counts(history.now, network(dc1=2), network(dc1=3))
    with pytest.raises(Rejected, match="data centre dc1 has never had 4 nodes"):
        prove_counts(history.now, network(dc1=3), network(dc1=4))


def test_the_way_to_a_list_of_racks_needs_a_node_for_each_that_is_missed() -> None:
    history = in_racks(3, racks=("r1", "r1", "r1", "r1"))
    target = listed(("r1", "r2", "r3"))
    keyspace = history.now.schema.by_name["k"]
    with pytest.raises(Rejected, match=r"miss 2 of the racks of dc1.*each has 5 replicas, .* has 4 nodes"):
        detour(history.now, keyspace, target)
    more = in_racks(3, racks=("r1", "r1", "r1", "r1", "r1"))
    assert detour(more.now, more.now.schema.by_name["k"], target).factors == (("dc1", 5),)


def test_shards_go_with_the_replicas_that_went() -> None:
    history = cluster()
    (group,) = history.now.tablets.groups
    keyspace = history.now.schema.by_name["k"]
    first, second, *_ = map_of(history).tablets()
    stray = next(node for node in (1, 2, 3, 4, 5) if node not in first.nodes)
    places = [
        (first.right, [(first.nodes[0], 1), (NodeId(stray), 1)]),
        (second.right, [(second.nodes[1], 1)]),
    ]
    value = history.now.changed(
        TABLETS.set(history.now.tablets.with_groups((replace(group, shards=shards_of(places)),)))
    )
    cleaned = without_stray_shards(value, keyspace)
    shards = cleaned.tablets.by_group[group.id].shards
    assert shards.everything() == {
        first.right: ((first.nodes[0], 1),),
        second.right: ((second.nodes[1], 1),),
    }
    assert cleaned.tablets.by_group[group.id].head == group.head
    assert without_stray_shards(cleaned, keyspace) is cleaned
    builder = TABLETS.builder()
    for item in TABLETS.items(value.tablets):
        builder.add(*item)
    again = builder.finish()
    assert again.digest == value.tablets.digest, "they are in snapshots, and come back from them"
    assert again.by_group[group.id].shards.everything() == {right: tuple(at) for right, at in places}


# Changes of the schema while tablets move


def test_a_table_that_is_emptied_is_streamed_anew_and_other_stages_go_on() -> None:
    history = cluster()
    change(history, *BESIDE)
    wanted, other = move(history), move(history, 1)
    begin(history, wanted, other)
    early, late = on_its_way(history, wanted), on_its_way(history, other)
    assert early is not None and late is not None and late.position is not None
    streaming = replace(late, position=replace(late.position, stage=Stage.STREAMING))
    value = history.now.changed(TRANSITIONS.set(history.now.transitions.moved([streaming])))
    emptied = ChangeSchema(EmptyTable("k", "t")).apply(value, value.epoch + 1)
    assert emptied.transitions.at(wanted.group, wanted.right) == early, "nothing was streamed yet"
    again = emptied.transitions.at(other.group, other.right)
    assert again is not None and again.position is not None
    assert (again.position.stage_epoch, again.position.former) == (value.epoch + 1, Stage.STREAMING)
    assert again.position.session_id and again.position.session_id != late.position.session_id
    beside = ChangeSchema(EmptyTable("k2", "u")).apply(value, value.epoch + 1)
    assert beside.transitions is value.transitions, "what moves is of another table"
    dropped = ChangeSchema(DropTable("k", "t")).apply(value, value.epoch + 1)
    assert not dropped.transitions.count
