"""Which entries that only a node that was away has applied make no difference to the repaired cluster.

Invariant: every entry is of a class that is named here, or none of them is waived: what a schema, a role, a
node or a placement was at such a node, it is in the repaired cluster.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from lockstep.metadata.load_entries import BeginLoad, CommitLoad, EndLoad
from lockstep.metadata.log.entries import LogEntry
from lockstep.metadata.log.registry import EntryKind, Registry

#: Snapshots of the log, and what was dropped behind them: of files, not of the cluster.
UPKEEP: Final = "upkeep of the log"
#: Loads that were begun or given up, and whose leases have all run out: nothing of them is part of a table.
LEASES: Final = "leases that have all expired"
_UPKEEP_KINDS: Final = (EntryKind.SNAPSHOT, EntryKind.TRUNCATE_LOG)
_LEASE_KINDS: Final = (EntryKind.BEGIN_LOAD, EntryKind.END_LOAD)
assert not {*_UPKEEP_KINDS} & {*_LEASE_KINDS}, "an entry is of one class"


def waived(entries: Sequence[LogEntry], registry: Registry, now_ms: int) -> str:
    """The classes of the entries and how many are of each, for people; empty when one is of none."""
    assert entries, "who has applied nothing more needs no waiver"
    found: Counter[str] = Counter()
    for entry in entries:
        if entry.kind in _UPKEEP_KINDS:
            found[UPKEEP] += 1
        elif entry.kind in _LEASE_KINDS and _is_over(registry.decode(entry.kind, entry.body), now_ms):
            found[LEASES] += 1
        else:
            return ""
    return ", ".join(f"{name} ({count})" for name, count in sorted(found.items()))


def _is_over(change: object, now_ms: int) -> bool:
    assert not isinstance(change, CommitLoad), "what is part of a table is no lease"
    if isinstance(change, BeginLoad):
        return change.at_ms + change.lease_ms < now_ms
    return isinstance(change, EndLoad)
