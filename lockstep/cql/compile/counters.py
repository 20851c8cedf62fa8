"""What statements may do to tables that count.

Invariant: a request changes counters or other columns, never both: the one is added to what is there and can
not be repeated, the other replaces it.
"""

from __future__ import annotations

from collections.abc import Sequence

from lockstep.cql.parse import tree
from lockstep.schema.model import Table
from lockstep.values.errors import InvalidRequest


def check_batch(kind: str, tables: Sequence[Table], *, has_timestamp: bool = False) -> None:
    """`kind`: LOGGED, UNLOGGED, COUNTER; the table of each statement. InvalidRequest for what may not be in
    one batch."""
    counting = [table.is_counter for table in tables]
    if has_timestamp and any(counting):
        raise InvalidRequest("Cannot provide custom timestamp for a BATCH containing counters")
    if kind == "COUNTER" and not all(counting):
        raise InvalidRequest("Cannot include non-counter statement in a counter batch")
    if any(counting) and not all(counting):
        raise InvalidRequest("Counter and non-counter mutations cannot exist in the same batch")
    if kind == "LOGGED" and any(counting):
        raise InvalidRequest("Cannot include a counter statement in a logged batch")


def check_statement(statement: tree.Modification) -> None:
    """What no statement about a table of counters may say. InvalidRequest."""
    if isinstance(statement, tree.Insert):
        raise InvalidRequest("INSERT statements are not allowed on counter tables, use UPDATE instead")
    if statement.using.timestamp is not None:
        raise InvalidRequest("Cannot provide custom timestamp for counter updates")
    if statement.using.ttl is not None:
        raise InvalidRequest("Cannot provide custom TTL for counter updates")
    if statement.conditions is not None:
        raise InvalidRequest("Conditional updates are not supported on counter tables")
