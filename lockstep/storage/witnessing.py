"""What a node keeps of ranges of which it is a witness, and how much that may be.

Invariant: at the limit it refuses what coordinators send, and fetches nothing by itself; what a read brings
is taken, for a client waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from lockstep.storage.shard_logs import Shard, ShardLogs
from lockstep.tracking.held import MutationId
from lockstep.values.errors import Overloaded


class Witnessed(Protocol):
    """What is asked of a journal."""

    keeps: Callable[[Shard], bool]
    is_full: bool
    shards: dict[Shard, ShardLogs]


def witnessed_count(journal: Witnessed) -> int:
    """Entries of ranges of which this node is a witness."""
    shards: Mapping[Shard, ShardLogs] = journal.shards
    return sum(logs.open.count for shard, logs in shards.items() if not journal.keeps(shard))


def has_room(journal: Witnessed, shard: Shard) -> bool:
    """Whether this node takes more of a range that nobody waits for."""
    return not journal.is_full or journal.keeps(shard)


def require_room(journal: Witnessed, shard: Shard, given: MutationId | None = None) -> None:
    """Overloaded when this node is a witness of the range and its journal is as large as it may be, for what
    is not there already."""
    if not has_room(journal, shard):
        logs = journal.shards.get(shard)
        if given is not None and logs is not None and logs.contains(given.log, given.offset):
            return
        raise Overloaded(
            "this node is a witness, and its journal is as large as it may be: a full replica is away",
            hint="bring that one back, or replace it: `lockstep reconcile why` names it",
        )
