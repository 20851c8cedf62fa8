"""Who is told of each applied entry.

Invariant: listeners are told in the order in which they came, of every entry in order; those that look at
parts of the cluster are not told of an entry that changed none, such as one that sets an extension.
"""

from __future__ import annotations

from collections.abc import Callable

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.entries import LogEntry

#: Told (before, after, entry) after each applied entry, in order. After an installed snapshot `before` may be
#: many epochs older, and `entry` is the snapshot's.
Listener = Callable[[ClusterMetadata, ClusterMetadata, LogEntry], None]


class EpochListeners:
    def __init__(self) -> None:
        self._all: list[Listener] = []
        self._of_every_entry: list[Listener] = []

    def add(self, listener: Listener, *, parts_only: bool) -> None:
        self._all.append(listener)
        if not parts_only:
            self._of_every_entry.append(listener)

    def remove(self, listener: Listener) -> None:
        self._all = [other for other in self._all if other != listener]
        self._of_every_entry = [other for other in self._of_every_entry if other != listener]

    def tell(self, before: ClusterMetadata, after: ClusterMetadata, entry: LogEntry) -> None:
        for listener in self._of_every_entry if _same_parts(before, after) else self._all:
            listener(before, after, entry)


def _same_parts(before: ClusterMetadata, after: ClusterMetadata) -> bool:
    return (
        before.directory is after.directory
        and before.schema is after.schema
        and before.service is after.service
        and before.sessions is after.sessions
        and before.operations is after.operations
        and before.placements is after.placements
        and before.excluded is after.excluded
        and before.repairs is after.repairs
        and before.access is after.access
    )
