"""From when on tombstones may go, by each mode of a table."""

from __future__ import annotations

import pytest

from lockstep.metadata.cluster import empty_cluster
from lockstep.metadata.purging import decided_by_repairs, purge_before_s
from lockstep.metadata.repairs import NO_REPAIRS, REPAIRS, Repaired
from lockstep.schema.model import Table
from lockstep.schema.table_options import map_text
from lockstep.values.tokens import Range

NOW_S = 10_000
DELAY_S = 300


def table(mode: str | None, table_id: int = 7, grace_s: int = 600) -> Table:
    options = [("gc_grace_seconds", str(grace_s))]
    if mode is not None:
        told = map_text((("mode", mode), ("propagation_delay_in_seconds", str(DELAY_S))))
        options.append(("tombstone_gc", told))
    return Table(table_id, "u", "ks", "t", (), options=tuple(options))


#: Of table 7, two ranges beside each other were repaired, and one of which it is not known since when.
CLUSTER = empty_cluster().changed(
    REPAIRS.set(
        NO_REPAIRS.with_repaired(
            {
                7: (
                    Repaired(Range(0, 10), 5_100, 5_000, 3),
                    Repaired(Range(10, 20), 4_100, 4_000, 2),
                    Repaired(Range(50, 60), 4_100, 0, 4),
                    Repaired(Range(70, 80), 300, 200, 4),
                )
            },
            (7,),
        )
    )
)


@pytest.mark.parametrize(
    ("mode", "tokens", "before_s"),
    [
        (None, (0, 10), NOW_S - 600),
        ("timeout", (0, 10), NOW_S - 600),
        ("immediate", (0, 10), NOW_S),
        ("disabled", (0, 10), 0),
        ("repair", (0, 10), 5_000 - DELAY_S),
        ("repair", (2, 9), 5_000 - DELAY_S),
        ("repair", (5, 15), 4_000 - DELAY_S),
        ("repair", (0, 20), 4_000 - DELAY_S),
        ("repair", (15, 25), 0),
        ("repair", (20, 30), 0),
        ("repair", (50, 60), 0),
        ("repair", (70, 80), 0),
    ],
)
def test_what_may_go(mode: str | None, tokens: tuple[int, int], before_s: int) -> None:
    assert purge_before_s(CLUSTER, table(mode), Range(*tokens), NOW_S) == before_s


def test_a_table_has_its_own_repairs_and_never_purges_before_time_began() -> None:
    assert purge_before_s(CLUSTER, table("repair", table_id=8), Range(0, 10), NOW_S) == 0
    assert purge_before_s(CLUSTER, table("timeout", grace_s=NOW_S + 1), Range(0, 10), NOW_S) == 0
    assert purge_before_s(CLUSTER, table("timeout", grace_s=NOW_S - 1), Range(0, 10), NOW_S) == 1


@pytest.mark.parametrize(
    ("mode", "by_repairs"), [(None, False), ("timeout", False), ("immediate", False), ("repair", True)]
)
def test_which_tables_wait_for_repairs(mode: str | None, by_repairs: bool) -> None:
    assert decided_by_repairs(table(mode)) is by_repairs
