"""How large a batch may be, and what its client is warned of.

Invariant: only batches over several partitions are judged, by the data of what they write, whether they come
as one text or as the protocol's batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from lockstep.replication.hints import GC_GRACE_S_DEFAULT
from lockstep.values.errors import InvalidRequest
from lockstep.values.limits import UNLOGGED_PARTITIONS_WARNED
from lockstep.values.rows import Mutation, Row

if TYPE_CHECKING:
    from lockstep.node.node import Node

#: Bytes that a cell has beside its value and path (timestamp, lifetime, expiry), a row's marker, and a
#: deletion: as Cassandra counts them, whose users know the thresholds.
_CELL_BYTES: Final = 16
_LIVENESS_BYTES: Final = 8
_DELETION_BYTES: Final = 12


def data_bytes(mutations: Sequence[Mutation]) -> int:
    """The data of what is written, without keys of partitions."""
    total = 0
    for mutation in mutations:
        total += _DELETION_BYTES * (1 + len(mutation.range_deletions))
        for row in mutation.rows:
            total += _row_bytes(row)
        if mutation.static is not None:
            total += _row_bytes(mutation.static)
    return total


def _row_bytes(row: Row) -> int:
    total = len(row.clustering) + _LIVENESS_BYTES + _DELETION_BYTES * (1 + len(row.column_deletions))
    for cell in row.cells:
        total += _CELL_BYTES + len(cell.value or b"") + len(cell.path or b"")
    return total


class BatchLimits:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._settings = node.configuration.writes

    def judge(self, mutations: Sequence[Mutation], *, kind: str) -> tuple[str, ...]:
        """Warnings for the client of a batch; `kind`: LOGGED, UNLOGGED or COUNTER. InvalidRequest when it is
        too large."""
        if len(mutations) < 2:
            return ()
        found: list[str] = []
        size, warn, fail = (
            data_bytes(mutations),
            self._settings.batch_size_warn_threshold_bytes,
            self._settings.batch_size_fail_threshold_bytes,
        )
        if size > fail > 0:
            self._note("cql.batch_refused", mutations, size, fail)
            raise InvalidRequest(
                "Batch too large",
                hint=f"it is of size {size}, above writes.batch_size_fail_threshold_bytes = {fail}: send its "
                "partitions one by one",
            )
        if size > warn > 0:
            self._note("cql.batch_warned", mutations, size, warn)
            found.append(
                f"Batch for [{', '.join(self._tables(mutations))}] is of size {size}, exceeding specified "
                f"threshold of {warn} by {size - warn}."
            )
        if kind == "UNLOGGED" and len(mutations) > UNLOGGED_PARTITIONS_WARNED:
            tables = self._tables(mutations)
            plural = "s" if len(tables) > 1 else ""
            found.append(
                f"Unlogged batch covering {len(mutations)} partitions detected against table{plural} "
                f"[{', '.join(tables)}]. You should use a logged batch for atomicity, or asynchronous writes "
                "for performance."
            )
        if kind == "LOGGED":
            found += self._of_grace(mutations)
        return tuple(found)

    def _of_grace(self, mutations: Sequence[Mutation]) -> list[str]:
        brief = [name for name, gc_grace_s in self._tables(mutations).items() if not gc_grace_s]
        if not brief:
            return []
        plural = "s" if len(brief) > 1 else ""
        return [
            f"Executing a LOGGED BATCH on table{plural} [{', '.join(brief)}], configured with a "
            "gc_grace_seconds of 0. The gc_grace_seconds is used to TTL batchlog entries, so setting "
            "gc_grace_seconds too low on tables involved in an atomic batch might cause batchlog entries "
            "to expire before being replayed."
        ]

    def _note(self, event: str, mutations: Sequence[Mutation], size: int, threshold: int) -> None:
        tables = ",".join(self._tables(mutations))
        self._node.internode.repeated_log.note(
            event,
            tables,
            facts=lambda: {
                "tables": tables,
                "partitions": len(mutations),
                "size_bytes": size,
                "threshold_bytes": threshold,
            },
        )

    def _tables(self, mutations: Sequence[Mutation]) -> dict[str, int]:
        """Name -> gc_grace_seconds, sorted."""
        found: dict[str, int] = {}
        for table_id in sorted({mutation.table_id for mutation in mutations}):
            table = self._node.cluster.table(table_id)
            if table is not None:
                name = f"{table.keyspace}.{table.name}"
                found[name] = int(table.option("gc_grace_seconds", str(GC_GRACE_S_DEFAULT)))
        return dict(sorted(found.items()))
