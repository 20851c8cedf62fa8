"""A node joins while a table is read. Afterwards the room's cluster has four nodes."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

from lockstep.local.clusters import LocalCluster
from lockstep.spark.source import LockstepSource

from .conftest import EVENT_ROWS, event_rows
from .support import options
from .test_reading import WHOLE_RING, rows_of

pytestmark = pytest.mark.slow


def test_a_scan_and_an_older_plan_outlive_a_join(cluster: LocalCluster) -> None:
    source = LockstepSource(options(cluster, "events", pageSize="100", batchRows="100"))
    reader = source.reader(source.schema())
    planned = list(reader.partitions())
    batches = reader.read(WHOLE_RING)
    rows = [row for _ in range(5) for row in rows_of(iter([next(batches)]))]
    joined = cluster.add()
    rows += rows_of(batches)
    assert sorted(rows) == list(event_rows())

    later = [row for partition in planned for row in rows_of(reader.read(partition))]
    assert sorted(later) == list(event_rows())

    alone = LockstepSource({**options(cluster, "events"), "hosts": joined.address})
    reader = alone.reader(alone.schema())
    assert sum(len(rows_of(reader.read(partition))) for partition in reader.partitions()) == EVENT_ROWS
