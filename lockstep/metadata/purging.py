"""From which moment on tombstones of a table are needed no more, by its options and by recorded repairs.

Invariant: it only grows while a table's options stay and time goes on, but for a range that was never
repaired: there, in mode `repair`, nothing may go.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lockstep.metadata.repairs import Repaired, oldest
from lockstep.schema.model import Table
from lockstep.schema.table_options import option, option_map
from lockstep.values.tokens import Range

if TYPE_CHECKING:
    # Readers beside the nodes judge too, and have no use for all of it.
    from lockstep.metadata.cluster import ClusterMetadata


def decided_by_repairs(table: Table) -> bool:
    return option_map(option(table.options, "tombstone_gc"))["mode"] == "repair"


def purge_before_s(cluster: ClusterMetadata, table: Table, tokens: Range, now_s: int) -> int:
    """Tombstones made, and content expired, before this second may go; 0: none may."""
    return purged_before_s(cluster.repairs.by_table.get(table.id, ()), table, tokens, now_s)


def purged_before_s(repaired: Sequence[Repaired], table: Table, tokens: Range, now_s: int) -> int:
    """As `purge_before_s`, by the repairs that are recorded of the table."""
    assert now_s >= 0 and tokens.left < tokens.right, "a moment, and tokens"
    wanted = option_map(option(table.options, "tombstone_gc"))
    mode = wanted["mode"]
    if mode == "immediate":
        return now_s
    if mode == "timeout":
        return max(0, now_s - int(option(table.options, "gc_grace_seconds")))
    if mode == "disabled":
        return 0
    found = oldest(repaired, tokens)
    if found is None or not found.before_s:
        return 0
    return max(0, found.before_s - int(wanted["propagation_delay_in_seconds"]))
