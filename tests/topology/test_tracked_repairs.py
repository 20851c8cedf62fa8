"""What a repair does with tracked tables, by range, and what a restore says of them."""

from __future__ import annotations

import pytest

from lockstep.metadata.repairs import Repair, RepairState
from lockstep.metadata.schema_change import ChangeSchema
from lockstep.schema.changes import AlterOptions, EmptyTable
from lockstep.schema.model import Table
from lockstep.topology.repairs import RESTORE, BeginRepair, EndRepair, Way, units
from lockstep.values.ids import NodeId
from lockstep.values.tokens import Range
from tests.metadata.histories import History
from tests.topology.test_repairs import ONE, begin, end, part, refused, ring


def tracked(history: History, name: str, word: str = "tracked") -> None:
    history.submit(ChangeSchema(AlterOptions("ks", name, (("replication_type", word),))))


def table(history: History, name: str) -> Table:
    return history.now.schema.by_name["ks"].by_name[name]


def half_tracked() -> tuple[History, Table, Table]:
    """`second` is tracked, and a repair has made its replicas equal up to token 0; the other is not."""
    history = ring()
    tracked(history, "second")
    end(history, begin(history, part(history, Range(-(1 << 63), 0))), Range(-(1 << 63), 0))
    (other,) = (one for one in history.now.schema.by_name["ks"].tables if one.name != "second")
    return history, table(history, "second"), other


def repair_of(history: History) -> Repair:
    begin(history)
    return history.now.repairs.running[-1]


@pytest.mark.parametrize("full", [False, True])
def test_each_range_is_repaired_in_the_way_that_its_table_wants(full: bool) -> None:
    history, second, other = half_tracked()
    repair = repair_of(history)
    found = units(history.now, repair, 2, full=full)
    ways: dict[tuple[int, Way], set[Range]] = {}
    for unit in found:
        ways.setdefault((unit.table, unit.way), set()).update(unit.ranges)
        assert len(unit.nodes) == 3 and len(unit.ranges) <= 2
    placed = [one.range for one in history.now.placements.ring(repair.parts[0].group).ranges]
    told = {range_ for range_ in placed if range_.right <= 0}
    assert told and told != set(placed)
    wanted = {
        (other.id, Way.DATA): set(placed),
        (second.id, Way.DATA): set(placed) - told,
        (second.id, Way.IDS): told,
    }
    assert ways == {**wanted, **({(second.id, Way.DATA_AGAINST_IDS): told} if full else {})}
    last = [unit.way is Way.DATA_AGAINST_IDS for unit in found]
    assert last == sorted(last), "data is compared with ids once all is held"


def test_tables_of_one_group_are_waited_for_once() -> None:
    history = ring()
    names = [one.name for one in history.now.schema.by_name["ks"].tables]
    for name in names:
        tracked(history, name)
    end(history, begin(history))
    found = units(history.now, repair_of(history), 256, full=True)
    waits = [range_ for unit in found if unit.way is Way.IDS for range_ in unit.ranges]
    assert len(waits) == len(set(waits))
    assert len({unit.table for unit in found if unit.way is Way.DATA_AGAINST_IDS}) == len(names)


def test_hosts_alone_are_waited_for() -> None:
    history = ring()
    tracked(history, "second")
    end(history, begin(history))
    begin(history, nodes=(ONE, NodeId(3)))
    found = units(history.now, history.now.repairs.running[0], 256)
    assert all(set(unit.nodes) <= {ONE, NodeId(3)} for unit in found if unit.way is Way.IDS)


def restoring(history: History) -> Repair:
    history.submit(BeginRepair(ONE, (part(history),), 1000, purpose=RESTORE))
    return history.now.repairs.running[-1]


def whole() -> History:
    history = ring()
    tracked(history, "second")
    end(history, begin(history))
    return history


def test_a_restore_has_tables_read_by_data_until_it_is_done() -> None:
    history = whole()
    repair = restoring(history)
    assert table(history, "second").tracked_since == repair.began_epoch
    assert not [unit for unit in units(history.now, repair, 9) if unit.way is Way.IDS]
    history.submit(EndRepair(repair.id, RepairState.DONE, ended_s=990))
    assert table(history, "second").tracked_since == 0


@pytest.mark.parametrize("state", [RepairState.FAILED, RepairState.CANCELLED])
def test_one_that_does_not_end_well_leaves_that_to_a_repair(state: RepairState) -> None:
    history = whole()
    repair = restoring(history)
    history.submit(EndRepair(repair.id, state, ended_s=990))
    assert table(history, "second").tracked_since == repair.began_epoch
    again = restoring(history)
    assert table(history, "second").tracked_since == repair.began_epoch, "nothing tells by ids that could not"
    history.submit(EndRepair(again.id, RepairState.DONE, ended_s=990))
    assert table(history, "second").tracked_since == repair.began_epoch
    end(history, begin(history))
    assert [unit for unit in units(history.now, repair_of(history), 9) if unit.way is Way.IDS]


def test_a_table_that_a_restore_empties_is_told_of_as_before() -> None:
    history = whole()
    repair = restoring(history)
    before = table(history, "second")
    history.submit(ChangeSchema(EmptyTable("ks", "second")))
    after = table(history, "second")
    assert after.id != before.id and after.tracked_since == repair.began_epoch
    history.submit(EndRepair(repair.id, RepairState.DONE, ended_s=990))
    assert table(history, "second").tracked_since == 0


def test_a_table_that_is_emptied_at_other_times_is_read_by_ids_at_once() -> None:
    history = ring()
    tracked(history, "second")
    assert table(history, "second").tracked_since > 0
    history.submit(ChangeSchema(EmptyTable("ks", "second")))
    assert table(history, "second").tracked_since == 0


def test_a_table_of_which_ids_tell_in_part_is_not_restored() -> None:
    history, _, _ = half_tracked()
    entry = BeginRepair(ONE, (part(history),), 1000, purpose=RESTORE)
    assert "on its way to being tracked" in refused(history, entry)


def test_untracked_tables_are_restored_without_a_word() -> None:
    history = ring()
    before = history.now.schema
    repair = restoring(history)
    history.submit(EndRepair(repair.id, RepairState.DONE, ended_s=990))
    assert history.now.schema is before
