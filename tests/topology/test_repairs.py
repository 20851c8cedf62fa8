"""The entries of repairs: what they refuse, what they record, and when a range is degraded no more."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from lockstep.metadata.degraded import DEGRADED, Degraded
from lockstep.metadata.groups.membership import ServiceWish, SetService
from lockstep.metadata.log.apply import state_digest
from lockstep.metadata.log.snapshot import SnapshotDecoder, pieces
from lockstep.metadata.repairs import Repaired, RepairPart, RepairState, oldest, recorded
from lockstep.metadata.schema_change import ChangeSchema
from lockstep.schema.changes import CreateTable, DropTable, NewColumn
from lockstep.schema.model import ColumnKind
from lockstep.topology.force_remove import ForceRemove
from lockstep.topology.kinds.decommission import Decommission
from lockstep.topology.kinds.replication import ReplicationChange
from lockstep.topology.repairs import (
    BACKUP,
    RESTORE,
    BeginRepair,
    EndRepair,
    is_unchanged,
    mended,
    refuse_emptied,
    units,
)
from lockstep.topology.transformations import PrepareOperation
from lockstep.values.errors import Rejected
from lockstep.values.ids import NodeId
from lockstep.values.limits import (
    REPAIRED_RANGES_KEPT_MAX,
    REPAIRS_RUNNING_MAX,
    SERVICE_TEXT_CHARACTERS_MAX,
)
from lockstep.values.tokens import FULL_RING, Range
from tests.metadata.histories import History, network
from tests.metadata.stored import REGISTERED, from_stored, stored
from tests.topology.drills import run_out
from tests.topology.test_replication_change import with_table

ONE = NodeId(1)


def ring(nodes: int = 4) -> History:
    """`ks` with three replicas and two tables."""
    history = with_table(nodes, network(dc1=3))
    columns = (NewColumn("k", "int", ColumnKind.PARTITION_KEY, 0),)
    history.submit(ChangeSchema(CreateTable("ks", "second", "uuid-second", columns)))
    return history


def part(history: History, *ranges: Range, tables: slice = slice(None)) -> RepairPart:
    keyspace = history.now.schema.by_name["ks"]
    ids = tuple(table.id for table in keyspace.tables)[tables]
    return RepairPart("ks", keyspace.group, ids, ranges or (FULL_RING,))


def begin(history: History, *parts: RepairPart, nodes: tuple[NodeId, ...] = ()) -> int:
    history.submit(BeginRepair(ONE, parts or (part(history),), 1000, nodes))
    return history.now.repairs.running[-1].id


def end(history: History, repair: int, *ranges: Range) -> None:
    history.submit(EndRepair(repair, RepairState.DONE, (ranges or (FULL_RING,),), 990))


def refused(history: History, entry: object) -> str:
    with pytest.raises(Rejected) as caught:
        entry.apply(history.now, history.now.epoch + 1)  # type: ignore[attr-defined]
    return caught.value.message


def test_the_session_is_open_from_the_first_entry_to_the_last() -> None:
    history = ring()
    repair = begin(history)
    session = history.now.repairs.running[0].session_id
    assert history.now.session_open(session)
    assert "holds" in refused(history, BeginRepair(ONE, (part(history, Range(0, 5)),), 1000))
    end(history, repair)
    assert not history.now.session_open(session)
    assert "not running" in refused(history, EndRepair(repair, RepairState.DONE))
    begin(history)


def test_what_was_repaired_by_all_is_recorded_and_nothing_else() -> None:
    history = ring()
    half = Range(FULL_RING.left, 0)
    end(history, begin(history, part(history, half)), half)
    tables = [table.id for table in history.now.schema.by_name["ks"].tables]
    for table in tables:
        [one] = history.now.repairs.by_table[table]
        assert (one.range, one.at_s, one.before_s) == (half, 1000, 990)
    end(history, begin(history, nodes=(ONE, NodeId(2))))
    assert [len(one.ranges) for one in history.now.repairs.tables] == [1, 1]
    again = from_stored(stored(history.now))
    assert again.repairs == history.now.repairs
    decoder = SnapshotDecoder(registered=REGISTERED)
    for piece in pieces(history.now):
        decoder.feed(piece)
    assert state_digest(decoder.finish()) == state_digest(history.now)


def test_ranges_that_move_are_refused_and_those_that_changed_meanwhile_not_recorded() -> None:
    history = ring(5)
    repair = begin(history)
    before = history.now.placements
    history.submit(ForceRemove(NodeId(4), "its disk burnt"))
    end(history, repair)
    ring_now = history.now.placements.ring(part(history).group)
    changed = [one.range for one in ring_now.ranges if one.group.epoch == history.now.epoch - 1]
    assert changed and before is not history.now.placements
    for table in history.now.repairs.tables:
        assert not any(one.range.intersects(range_) for one in table.ranges for range_ in changed)
    history.submit(PrepareOperation(Decommission(NodeId(3))))
    assert "moves" in refused(history, BeginRepair(ONE, (part(history),), 1000))


def test_a_range_is_degraded_until_all_its_tables_were_repaired_since() -> None:
    history = ring()
    early = begin(history)
    history.submit(ForceRemove(NodeId(4), "its disk burnt"))
    assert history.now.degraded
    end(history, early)
    assert history.now.degraded, "a repair that began before knows nothing of it"
    first = part(history, tables=slice(1))
    end(history, begin(history, first))
    assert history.now.degraded, "one of two tables"
    end(
        history,
        begin(history, part(history, Range(FULL_RING.left, 0), tables=slice(1, 2))),
        Range(FULL_RING.left, 0),
    )
    left = history.now.degraded
    assert left and all(line.range.left >= 0 for line in left), "the repaired half"
    end(history, begin(history))
    assert history.now.degraded == ()


def test_a_repair_ends_with_the_node_that_drove_it() -> None:
    history = ring()
    history.submit(BeginRepair(NodeId(4), (part(history),), 1000))
    session = history.now.repairs.running[0].session_id
    history.submit(ForceRemove(NodeId(4), "its disk burnt"))
    assert not history.now.session_open(session)
    begin(history)
    assert history.now.repairs.ended[0].state is RepairState.FAILED


def test_units_cover_each_range_once_with_its_replicas() -> None:
    history = ring(6)
    begin(history)
    repair = history.now.repairs.running[0]
    placed = history.now.placements.ring(repair.parts[0].group)
    for table in repair.parts[0].tables:
        found = sorted(
            (r, u.nodes) for u in units(history.now, repair, 2) for r in u.ranges if u.table == table
        )
        assert found == [(one.range, tuple(sorted(one.group.writes))) for one in placed.ranges]


@pytest.mark.parametrize("seed", range(5))
def test_records_agree_with_a_list_of_tokens(seed: int) -> None:
    dice = Random(seed)
    known: tuple[Repaired, ...] = ()
    twin: dict[int, tuple[int, int, int]] = {}
    for number in range(60):
        left, right = sorted(dice.sample(range(-20, 21), 2))
        facts = (number, dice.randrange(5), number)
        known = recorded(known, Repaired(Range(left, right), *facts))
        twin.update(dict.fromkeys(range(left + 1, right + 1), facts))
    for _ in range(40):
        left, right = sorted(dice.sample(range(-20, 21), 2))
        inside = [twin.get(token) for token in range(left + 1, right + 1)]
        found = oldest(known, Range(left, right))
        if any(one is None for one in inside):
            assert found is None
        else:
            wanted = tuple(min(one[n] for one in inside if one is not None) for n in range(3))
            assert found is not None and (found.at_s, found.before_s, found.epoch) == wanted


def test_records_are_bounded_by_taking_the_older_one_of_neighbours() -> None:
    known: tuple[Repaired, ...] = ()
    for number in range(REPAIRED_RANGES_KEPT_MAX + 5):
        known = recorded(known, Repaired(Range(number, number + 1), 1000 + number, number, number))
    assert len(known) <= REPAIRED_RANGES_KEPT_MAX
    found = oldest(known, Range(0, REPAIRED_RANGES_KEPT_MAX))
    assert found is not None and found.at_s == 1000


# -- what is refused


def other_part(history: History, *ranges: Range) -> RepairPart:
    """Of a keyspace beside `ks`, with a table of its own."""
    keyspace = history.now.schema.by_name["k0"]
    return RepairPart("k0", keyspace.group, (next(iter(keyspace.tables)).id,), ranges or (FULL_RING,))


def two_keyspaces() -> History:
    history = with_table(5, network(dc1=3), others=(network(dc1=2),))
    columns = (NewColumn("k", "int", ColumnKind.PARTITION_KEY, 0),)
    history.submit(ChangeSchema(CreateTable("k0", "beside", "uuid-beside", columns)))
    return history


def test_what_no_repair_can_be_is_refused() -> None:
    history = ring()
    whole = part(history)
    for entry, why in (
        (BeginRepair(NodeId(9), (whole,), 1000), "no node 9 to drive"),
        (BeginRepair(ONE, (), 1000), "nothing to repair"),
        (BeginRepair(ONE, (msgspec.structs.replace(whole, tables=()),), 1000), "nothing to repair"),
        (BeginRepair(ONE, (msgspec.structs.replace(whole, ranges=()),), 1000), "nothing to repair"),
        (BeginRepair(ONE, (whole,), 1000, purpose="fun"), "nothing holds ranges for 'fun'"),
        (
            BeginRepair(ONE, (msgspec.structs.replace(whole, keyspace="gone"),), 1000),
            "keyspace gone is replicated otherwise",
        ),
        (
            BeginRepair(ONE, (msgspec.structs.replace(whole, group=9),), 1000),
            "keyspace ks is replicated otherwise",
        ),
        (
            BeginRepair(ONE, (msgspec.structs.replace(whole, tables=(*whole.tables, 999)),), 1000),
            "keyspace ks has no table of id 999",
        ),
        (BeginRepair(ONE, (whole,), 1000, (ONE, NodeId(9))), "no node 9 to take part"),
    ):
        assert why in refused(history, entry)
    history.submit(ForceRemove(NodeId(4), "its disk burnt"))
    assert "no node 4 to drive" in refused(history, BeginRepair(NodeId(4), (whole,), 1000))
    assert "no node 4 to take part" in refused(history, BeginRepair(ONE, (whole,), 1000, (ONE, NodeId(4))))
    second = history.now.schema.by_name["ks"].by_name["second"].id
    history.submit(ChangeSchema(DropTable("ks", "second")))
    gone = f"keyspace ks has no table of id {second}, which was to be repaired"
    assert refused(history, BeginRepair(ONE, (whole,), 1000)) == gone
    whole = part(history)
    history.submit(SetService(ServiceWish.FREEZE, text="upgrade"))
    assert "while the freeze: upgrade" in refused(history, BeginRepair(ONE, (whole,), 1000))


def test_so_many_repairs_run_at_once_where_they_are_about_other_ranges() -> None:
    history = ring()
    for at in range(REPAIRS_RUNNING_MAX):
        begin(history, part(history, Range(at, at + 1)))
    one_more = BeginRepair(ONE, (part(history, Range(900, 901)),), 1000)
    assert f"{REPAIRS_RUNNING_MAX} repairs are running" in refused(history, one_more)
    history.submit(EndRepair(1, RepairState.CANCELLED))
    message = refused(history, BeginRepair(ONE, (part(history, Range(0, 2)),), 1000))
    assert message == "repair 2 (of ks) holds (1, 2] of keyspace ks"
    history.submit(one_more)


def test_a_keyspace_is_not_repaired_while_its_replication_changes_and_others_are() -> None:
    history = two_keyspaces()
    history.submit(PrepareOperation(ReplicationChange("k0", network(dc1=3))))
    message = refused(history, BeginRepair(ONE, (other_part(history),), 1000))
    assert message == "keyspace k0 is not repaired during operation 1 (replication_change of keyspace k0)"
    begin(history)
    run_out(history, 1)
    begin(history, other_part(history))


def test_only_ranges_that_move_are_refused() -> None:
    history = ring(6)
    history.submit(PrepareOperation(Decommission(NodeId(6))))
    moving = {transition.range for transition in history.now.transitions.listed()}
    free = set[Range]()
    for placed in history.now.placements.ring(part(history).group).ranges:
        entry = BeginRepair(ONE, (part(history, placed.range),), 1000)
        if any(placed.range.intersects(held) for held in moving):
            where = f"moves ({placed.range.left}, {placed.range.right}] of keyspace ks"
            assert refused(history, entry) == f"operation 1 (decommission of node 6) {where}"
        else:
            free.add(placed.range)
            entry.apply(history.now, history.now.epoch + 1)
    assert moving and free


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"repair": 7}, "repair 7 is not running"),
        ({"state": RepairState.RUNNING}, "this is no end"),
        ({"reason": "x" * (SERVICE_TEXT_CHARACTERS_MAX + 1)}, "this is no end"),
    ],
)
def test_what_is_no_end_is_refused(change: dict[str, object], why: str) -> None:
    history = ring()
    ending = EndRepair(begin(history), RepairState.FAILED, reason="x" * SERVICE_TEXT_CHARACTERS_MAX)
    assert why in refused(history, msgspec.structs.replace(ending, **change))
    history.submit(ending)
    (ended,) = history.now.repairs.ended
    assert (ended.state, len(ended.reason)) == (RepairState.FAILED, SERVICE_TEXT_CHARACTERS_MAX)


def test_an_end_that_depends_on_the_replicas_is_refused_when_they_changed_since() -> None:
    history = ring(5)
    repair = begin(history, part(history))
    began = history.now.epoch
    assert is_unchanged(history.now, history.now.repairs.running[0], began)
    history.submit(ForceRemove(NodeId(5), "its disk burnt"))
    changed = history.now.repairs.running[0]
    assert not is_unchanged(history.now, changed, began)
    assert is_unchanged(history.now, changed, history.now.epoch)
    strict = EndRepair(repair, RepairState.DONE, ((FULL_RING,),), unchanged_since=began)
    assert "repair 1 (of ks) got other replicas meanwhile" in refused(history, strict)
    history.submit(msgspec.structs.replace(strict, unchanged_since=history.now.epoch, ended_s=1200))
    (ended,) = history.now.repairs.ended
    assert (ended.ended_epoch, ended.ended_s) == (history.now.epoch, 1200)


@pytest.mark.parametrize("purpose", ["", BACKUP, RESTORE])
def test_only_a_repair_records_that_replicas_are_equal(purpose: str) -> None:
    history = ring()
    history.submit(BeginRepair(ONE, (part(history),), 1000, purpose=purpose))
    (held,) = history.now.repairs.running
    assert held.title() == f"{purpose or 'repair'} 1 (of ks)"
    end(history, 1)
    assert bool(history.now.repairs.tables) is (not purpose)


@pytest.mark.parametrize("purpose", ["", BACKUP, RESTORE])
def test_only_a_restore_that_has_emptied_tables_is_not_to_be_disturbed(purpose: str) -> None:
    history = two_keyspaces()
    history.submit(BeginRepair(ONE, (part(history),), 1000, purpose=purpose))
    refuse_emptied(history.now, [part(history), other_part(history)])
    history.submit(ChangeSchema(DropTable("ks", "t")))
    refuse_emptied(history.now, [other_part(history)])
    if purpose != RESTORE:
        refuse_emptied(history.now, [part(history)])
        return
    with pytest.raises(Rejected, match=r"restore 1 \(of ks\) has emptied tables of keyspace ks"):
        refuse_emptied(history.now, [other_part(history), part(history)])


def test_a_table_that_is_gone_is_not_recorded() -> None:
    history = ring()
    repair = begin(history)
    history.submit(ChangeSchema(DropTable("ks", "second")))
    end(history, repair)
    (left,) = history.now.schema.by_name["ks"].tables
    assert [one.table for one in history.now.repairs.tables] == [left.id]


def test_units_ask_only_the_nodes_that_take_part_and_are_cut_by_number() -> None:
    history = ring(6)
    begin(history, nodes=(ONE, NodeId(3)))
    repair = history.now.repairs.running[0]
    found = units(history.now, repair, 1)
    assert {len(unit.ranges) for unit in found} == {1}
    placed = history.now.placements.ring(repair.parts[0].group).ranges
    for table in repair.parts[0].tables:
        by_range = {unit.ranges[0]: unit.nodes for unit in found if unit.table == table}
        assert by_range == {
            one.range: tuple(sorted(set(one.group.writes) & {ONE, NodeId(3)})) for one in placed
        }
    assert {unit.part for unit in found} == {0}
    narrow = msgspec.structs.replace(repair, parts=(part(history, Range(-10, 10)),), nodes=())
    cut = [range_ for unit in units(history.now, narrow, 9) for range_ in unit.ranges]
    assert min(one.left for one in cut) == -10 and max(one.right for one in cut) == 10


def test_of_a_range_that_was_degraded_twice_the_later_loss_counts() -> None:
    """The entry that says it is repaired takes both lines away."""
    history = ring()
    repair = begin(history)
    lost = NodeId(2), NodeId(3)
    group, since = part(history).group, history.now.repairs.running[0].began_epoch
    twice = tuple(
        Degraded(group, FULL_RING, epoch, (node,)) for epoch, node in zip((1, since), lost, strict=True)
    )
    history.values[-1] = history.now.changed(DEGRADED.set(twice))
    ending = EndRepair(repair, RepairState.DONE, ((FULL_RING,),), 990)
    after = ending.apply(history.now, history.now.epoch + 1)
    assert list(mended(after)) == [] and after.degraded == twice, "it may have begun before the second loss"
    once = history.now.changed(DEGRADED.set(twice[:1]))
    assert ending.apply(once, once.epoch + 1).degraded == ()
