"""How much one write may change in a table that has views.

Invariant: what a replica works out for views in the step in which it applies a write is bounded before
anything is sent, by what is written; the rows that are there already are not counted.
"""

from __future__ import annotations

from collections.abc import Iterable

from lockstep.coordination.page import bytes_of
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.values.errors import InvalidRequest
from lockstep.values.request_limits import VIEWED_BYTES_MAX, VIEWED_CELLS_MAX, VIEWED_ROWS_MAX
from lockstep.values.rows import Mutation, Partition


def require_derivable(cluster: ClusterMetadata, mutations: Iterable[Mutation]) -> None:
    """InvalidRequest when one of them writes more than its table's views allow."""
    for mutation in mutations:
        table = cluster.table(mutation.table_id)
        if table is None or not table.views:
            continue
        views = len(table.views)
        _require(len(mutation.rows), VIEWED_ROWS_MAX, views, "rows", table.name)
        _require(sum([len(row.cells) for row in mutation.rows]), VIEWED_CELLS_MAX, views, "cells", table.name)
        size = bytes_of(Partition(mutation.token, mutation.key, rows=mutation.rows))
        _require(size, VIEWED_BYTES_MAX, views, "bytes", table.name)


def _require(found: int, most: int, views: int, what: str, table: str) -> None:
    if found * views > most:
        raise InvalidRequest(
            f"A write of one partition of {table}, which has {views} materialized views, has at most "
            f"{most // views} {what}; this one has {found}",
            hint="write it in several requests",
        )
