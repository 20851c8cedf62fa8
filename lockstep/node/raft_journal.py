"""The durable half of Raft: hard state and log entries in one write-ahead file.

Invariant: replaying the records in order gives exactly the state whose persistence was acknowledged, plus
possibly one last record whose sync had not finished.
"""

from __future__ import annotations

import msgspec

from lockstep.consensus.effects import HardState
from lockstep.consensus.messages import Entry
from lockstep.node.journal import Journal
from lockstep.runtime.ports import Disk
from lockstep.values.codec import decoder, encode
from lockstep.values.errors import CorruptFile


class _Record(msgspec.Struct, frozen=True, array_like=True):
    """`entries` replace everything from their first index on."""

    hard_state: HardState | None
    entries: tuple[Entry, ...]


_DECODER = decoder(_Record)


class RaftJournal:
    def __init__(self, disk: Disk, group: int) -> None:
        self._path = f"raft/group-{group}"
        self._journal = Journal(disk, self._path)

    def load(self) -> tuple[HardState, list[Entry]]:
        """Hard state and entries with indexes 1, 2, … CorruptFile when they are not that."""
        hard_state, entries = HardState(), list[Entry]()
        for record in self._journal.load_as(_DECODER):
            hard_state = record.hard_state or hard_state
            if record.entries:
                first = record.entries[0].index
                del entries[first - 1 :]
                if first != len(entries) + 1:
                    raise CorruptFile(self._path, 0, f"entry {first} follows entry {len(entries)}")
                entries.extend(record.entries)
        return hard_state, entries

    async def append(self, hard_state: HardState | None, entries: tuple[Entry, ...]) -> None:
        await self._journal.append(encode(_Record(hard_state, entries)))
