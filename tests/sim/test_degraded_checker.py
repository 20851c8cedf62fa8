"""What the checker says of marks of degraded ranges."""

from __future__ import annotations

import pytest

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.degraded import DEGRADED, Degraded
from lockstep.metadata.repairs import REPAIRS, Repaired, Repairs, TableRepairs
from lockstep.sim.checkers.ownership import check_marked
from lockstep.sim.checkers.violation import Violation
from lockstep.values.ids import NodeId
from lockstep.values.tokens import Range
from tests.sim.test_disk_checkers import history


def degraded(*ranges: Range) -> ClusterMetadata:
    now = history().now
    group = now.schema.by_name["sim"].group
    lines = tuple(Degraded(group, range_, 3, (NodeId(3),)) for range_ in ranges)
    return now.changed(DEGRADED.set(lines))


def repaired(value: ClusterMetadata, range_: Range, epoch: int) -> ClusterMetadata:
    table = value.schema.table("sim", "t")
    assert table is not None
    known = TableRepairs(table.id, (Repaired(range_, 100, 100, epoch),))
    return value.changed(REPAIRS.set(Repairs(tables=(known,))))


def test_what_was_repaired_may_be_marked_whole_or_in_part() -> None:
    before = degraded(Range(0, 100))
    facts: list[str] = []
    check_marked(before, repaired(degraded(), Range(-50, 100), 4), facts.append)
    assert facts == ["a range was marked repaired"]
    check_marked(before, repaired(degraded(Range(0, 40)), Range(40, 200), 4), facts.append)
    assert facts[1:] == ["a part of a range was marked"]


@pytest.mark.parametrize(
    ("range_", "epoch"), [(Range(40, 100), 4), (Range(0, 100), 3)], ids=["a part of it", "an older repair"]
)
def test_what_was_not_repaired_since_may_not(range_: Range, epoch: int) -> None:
    after = repaired(degraded(), range_, epoch)
    with pytest.raises(Violation, match=r"REP-4: .* is degraded since epoch 3"):
        check_marked(degraded(Range(0, 100)), after, lambda _fact: None)
