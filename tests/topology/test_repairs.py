"""The entries of repairs: what they refuse, what they record, and when a range is degraded no more."""

from __future__ import annotations

from random import Random

import pytest

from lockstep.metadata.cluster import decode_cluster, encode_cluster
from lockstep.metadata.digest import state_digest
from lockstep.metadata.operations import OperationKind
from lockstep.metadata.repairs import Repaired, RepairPart, RepairState, oldest, recorded
from lockstep.metadata.schema_change import ChangeSchema
from lockstep.metadata.snapshot import SnapshotDecoder, pieces
from lockstep.schema.changes import CreateTable, NewColumn
from lockstep.schema.model import ColumnKind
from lockstep.topology.force_remove import ForceRemove
from lockstep.topology.repairs import BeginRepair, EndRepair, units
from lockstep.topology.transformations import PrepareOperation
from lockstep.values.errors import Rejected
from lockstep.values.ids import NodeId
from lockstep.values.limits import REPAIRED_RANGES_KEPT_MAX
from lockstep.values.tokens import FULL_RING, Range
from tests.metadata.histories import History, network
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
    return RepairPart("ks", keyspace.replication, ids, ranges or (FULL_RING,))


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
    again = decode_cluster(encode_cluster(history.now))
    assert again.repairs == history.now.repairs
    decoder = SnapshotDecoder()
    for piece in pieces(history.now):
        decoder.feed(piece)
    assert state_digest(decoder.finish()) == state_digest(history.now)


def test_ranges_that_move_are_refused_and_those_that_changed_meanwhile_not_recorded() -> None:
    history = ring(5)
    repair = begin(history)
    before = history.now.placements
    history.submit(ForceRemove(NodeId(4), "its disk burnt"))
    end(history, repair)
    ring_now = history.now.placements.ring(part(history).replication)
    changed = [one.range for one in ring_now.ranges if one.group.epoch == history.now.epoch - 1]
    assert changed and before is not history.now.placements
    for table in history.now.repairs.tables:
        assert not any(one.range.intersects(range_) for one in table.ranges for range_ in changed)
    history.submit(PrepareOperation(OperationKind.DECOMMISSION, NodeId(3)))
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
    placed = history.now.placements.ring(repair.parts[0].replication)
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
