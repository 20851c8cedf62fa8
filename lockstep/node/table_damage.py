"""Telling of damaged table files: in the log once, in metrics, by name of table and range.

Invariant: each file is told of once by each incarnation of the node, whoever came upon it.
"""

from __future__ import annotations

from collections.abc import Callable

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.storage.companions import with_ballots
from lockstep.storage.damage import DamagedFiles
from lockstep.storage.lacking import tokens_between
from lockstep.values.errors import TableFileDamaged

#: Tables named in one line; a file of many says how many more there are.
TABLES_NAMED_MAX = 4


class TableDamage:
    def __init__(
        self, damaged: DamagedFiles, cluster: Callable[[], ClusterMetadata], log: Callable[..., None]
    ) -> None:
        self.damaged = damaged
        self._cluster = cluster
        self._log = log
        damaged.listen(self._heard)

    def _heard(self, error: TableFileDamaged) -> None:
        self._log(
            "storage.table_file_damaged",
            file=error.path,
            offset=error.offset,
            tables=content_of(error, self._cluster()),
            error=error.why,
        )


def content_of(error: TableFileDamaged, cluster: ClusterMetadata) -> str:
    """Tables and tokens that the file may have something of, for people."""
    found = []
    for keyspace in cluster.schema.keyspaces:
        for table in keyspace.tables:
            for stored_id in with_ballots((table.id,)):
                tokens = tokens_between(error.first_key, error.last_key, stored_id)
                if tokens is not None:
                    found.append(f"{keyspace.name}.{table.name} ({tokens.left}, {tokens.right}]")
                    break
    more = len(found) - TABLES_NAMED_MAX
    named = ", ".join(found[:TABLES_NAMED_MAX]) or "no table: records of this node"
    return f"{named} and {more} more" if more > 0 else named
